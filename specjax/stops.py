"""Strings that end a text, found on the device while it is made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from specjax.automaton import Automaton


@struct.dataclass
class StopStrings:
    """An automaton that knows how much of each string the text ends with (Aho, Corasick 1975).

    It walks over bytes, so a string is found across the borders of tokens and inside one.
    ``hits[state, class]`` has a bit for each string that is complete within a token of that
    class. Over tokens it is small: classes instead of a vocabulary, a state for each prefix.
    """

    automaton: Automaton
    hits: Int[Array, "S C"]

    def follow(
        self, state: Int[Array, " B"], tokens: Int[Array, "B E"]
    ) -> tuple[Int[Array, "B E"], Int[Array, "B E"]]:
        """Strings completed within each token, as bits, and the state after it."""

        def step(state, token):
            found = self.hits[state, self.automaton.classes[token]]
            after = jax.vmap(self.automaton.step)(state, token)
            return after, (found, after)

        _, (found, after) = jax.lax.scan(step, state, tokens.T)
        return found.T, after.T


def state_after(
    stops: StopStrings, state: Int[Array, " B"], tokens: Int[Array, "B E"], count: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Where the automaton stands once the first ``count`` tokens are part of the text."""
    _, after = stops.follow(state, tokens)
    last = jnp.take_along_axis(after, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    return jnp.where(count > 0, last, state)
