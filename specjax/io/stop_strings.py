"""From strings to the automaton that finds them in a stream of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from specjax.automaton import Automaton
from specjax.request import bucket
from specjax.stops import StopStrings

MOST = 31
"""Strings of one call: each has a bit of an int32."""


@lru_cache(maxsize=32)
def find_strings(
    strings: tuple[str, ...], token_bytes: tuple[bytes, ...], vocab_size: int
) -> StopStrings:
    """Build the automaton that finds ``strings``, string j as bit j of a hit.

    Sizes are bucketed, so that other strings of about the same length compile nothing anew.
    Takes some tenths of a second for 49k tokens.
    """
    moves, complete = _over_bytes([s.encode() for s in strings])
    after, hits = _over_tokens(moves, complete, token_bytes, vocab_size)
    columns, classes = np.unique(np.concatenate([after, hits]), axis=1, return_inverse=True)
    num = len(moves)
    shape = (bucket(num, 8), bucket(columns.shape[1], 16))
    table, found = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    table[:num, : columns.shape[1]] = columns[:num]
    found[:num, : columns.shape[1]] = columns[num:]
    automaton = Automaton(jnp.asarray(classes.reshape(-1), jnp.int32), jnp.asarray(table))
    return StopStrings(automaton, jnp.asarray(found))


def _over_bytes(strings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Next state by byte, and the strings complete in each state (Aho and Corasick, 1975)."""
    states = {b"": 0}
    for string in strings:
        for end in range(1, len(string) + 1):
            states.setdefault(string[:end], len(states))
    moves = np.zeros((len(states), 256), np.int32)
    complete = np.zeros(len(states), np.int32)
    for text, state in states.items():
        for byte in range(256):
            rest = text + bytes([byte])
            while rest not in states:
                rest = rest[1:]
            moves[state, byte] = states[rest]
        complete[state] = sum(1 << j for j, s in enumerate(strings) if text.endswith(s))
    return moves, complete


def _over_tokens(
    moves: np.ndarray, complete: np.ndarray, token_bytes: Sequence[bytes], vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """State after each token and strings complete within it, from each state: both [S, V]."""
    spelled = [*token_bytes[:vocab_size], *[b""] * (vocab_size - len(token_bytes))]
    lengths = np.array([len(b) for b in spelled])
    order = np.argsort(-lengths, kind="stable")  # so that those not yet at their end come first
    after = np.repeat(np.arange(len(moves), dtype=np.int32)[:, None], vocab_size, axis=1)
    hits = np.zeros_like(after)
    for at in range(lengths.max(initial=0)):
        going = order[: (lengths > at).sum()]
        byte = np.array([spelled[token][at] for token in going])
        after[:, going] = moves[after[:, going], byte]
        hits[:, going] |= complete[after[:, going]]
    return after, hits
