"""From what a user asks for to arrays of fixed shapes, with every argument checked by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, UInt32

from specjax import rng
from specjax.prompts import is_int
from specjax.settings import per_row, refuse_unknown, rows_of_ids, sampling_of
from specjax.types import Sampling

LEAST_CAPACITY = 128
"""The fewest tokens that are allocated for a row."""

MOST_SAMPLES = 2**16
"""Of a prompt in one call: far more rows than fit a device, but few enough to name in an error."""


@struct.dataclass
class Request:
    """Prompts and settings of one call as arrays; shapes are bucketed, so few traces serve all.

    ``cap`` is the longest draft of each row; ``num_samples`` rows come of each prompt, ``num_top``
    asks for log-probabilities with so many alternatives a token.
    """

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]
    limit: Int[Array, " B"]
    sampling: Sampling
    seeds: UInt32[Array, " B"]
    cap: Int[Array, " B"]
    num_samples: int = struct.field(pytree_node=False, default=1)
    num_top: int | None = struct.field(pytree_node=False, default=None)


def bucket(size: int, least: int) -> int:
    """Round up to ``least`` times a power of two, or one and a half times that.

    >>> [bucket(n, 128) for n in (1, 128, 129, 200, 500)]
    [128, 128, 192, 256, 512]
    """
    top = least
    while top < size:
        if top * 3 // 2 >= size:
            return top * 3 // 2
        top *= 2
    return top


def aligned(rows: Sequence[Sequence[int]], capacity: int) -> Int[np.ndarray, "B L"]:
    """Rows of token ids from the left, each with room up to ``capacity``."""
    tokens = np.zeros((len(rows), capacity), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens


def build(
    rows: Sequence[Sequence[int]],
    settings: Mapping[str, Any],
    *,
    vocab_size: int,
    depth: int,
    longest: int | None = None,
    own_stop_ids: Sequence[int] = (),
    least_capacity: int = LEAST_CAPACITY,
) -> Request:
    """Check every setting (``specjax.settings``) and lay a batch out in arrays.

    Args:
        rows: prompts as token ids.
        settings: as for ``Decoder.generate``.
        vocab_size: of the target.
        depth: longest draft of the drafter.
        longest: what prompt and output may come to.
        own_stop_ids: what ends a row where the settings say nothing.
        least_capacity: smallest bucket of capacities.

    Raises:
        ValueError: a setting is out of range, or a prompt and its budget do not fit.
        TypeError: there is no such setting.
    """
    refuse_unknown(settings)
    batch = len(rows)
    length = np.array([len(ids) for ids in rows], np.int32)
    limit = limit_of(length, settings, longest)
    tokens = aligned(rows, bucket(int(limit.max()), least_capacity))
    stop_ids = stop_ids_of(batch, settings, own_stop_ids, vocab_size)
    draft_length = settings.get("draft_length")
    cap = per_row(
        "draft_length", depth if draft_length is None else draft_length, batch, np.int32, 0
    )
    return Request(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        limit=jnp.asarray(limit),
        sampling=sampling_of(batch, vocab_size, stop_ids, settings),
        seeds=jnp.asarray(rng.draw_seeds(settings.get("seed"), batch), jnp.uint32),
        cap=jnp.minimum(cap, depth),
        num_samples=_whole("n", settings.get("n", 1), 1, MOST_SAMPLES),
        num_top=_num_top(settings.get("logprobs"), vocab_size),
    )


def limit_of(length: np.ndarray, settings: Mapping[str, Any], longest: int | None) -> np.ndarray:
    """Total length at which each row ends, never below that of its prompt."""
    budget = settings.get("max_new_tokens", 128)
    budget = np.asarray(per_row("max_new_tokens", budget, len(length), np.int32, 0), np.int64)
    limit = length + budget
    if settings.get("max_length") is not None:
        total = per_row("max_length", settings["max_length"], len(length), np.int32, 1)
        limit = np.maximum(np.minimum(limit, np.asarray(total)), length)
    if longest is not None and (limit > longest).any():
        row = int(limit.argmax())
        raise ValueError(
            f"prompts: row {row} has {length[row]} tokens, which with max_new_tokens="
            f"{budget[row]} is beyond the {longest} that the model and capacity allow; "
            "shorten the prompt, lower max_new_tokens, or raise capacity"
        )
    return limit.astype(np.int32)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if not is_int(value) or not low <= value <= high:
        raise ValueError(f"{name}: must be an int from {low} to {high}, got {value!r}")
    return int(value)


def _num_top(logprobs: Any, vocab_size: int) -> int | None:
    """How many alternatives to record a token, None for no record at all."""
    if logprobs is None or isinstance(logprobs, bool):
        return 0 if logprobs else None
    return _whole("logprobs", logprobs, 0, vocab_size)


def stop_ids_of(
    batch: int, settings: Mapping[str, Any], own: Sequence[int], vocab_size: int
) -> Int[Array, "B I"]:
    """Stop ids of each row, padded with -1 to a bucketed number."""
    own = [t for t in own if t < vocab_size]
    given = rows_of_ids("stop_token_ids", settings, batch, vocab_size)
    rows = [own if ids is None else ids for ids in given]
    padded = np.full((batch, bucket(max(map(len, rows)), 4)), -1, np.int32)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)] = ids
    return jnp.asarray(padded)
