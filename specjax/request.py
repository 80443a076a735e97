"""From what a user asks for to arrays of fixed shapes, with every argument checked by name."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, UInt32

from specjax import rng
from specjax.prompts import is_int, listed
from specjax.types import Sampling


@struct.dataclass
class Request:
    """Prompts and settings of one call as arrays; shapes are bucketed, so few traces serve all."""

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]
    limit: Int[Array, " B"]
    sampling: Sampling
    seeds: UInt32[Array, " B"]


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


def build(
    rows: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    max_length: int | None,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    vocab_size: int,
    stop_token_ids: Sequence[int] = (),
    seed: int | Sequence[int] | None = 0,
    least_capacity: int = 128,
) -> Request:
    """Check every setting and lay a batch out in arrays.

    Raises:
        ValueError: a setting is out of range, or a prompt and its budget do not fit.
    """
    batch, longest = len(rows), max(map(len, rows))
    if not is_int(max_new_tokens):
        raise ValueError(f"max_new_tokens: must be an int, got {max_new_tokens!r}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens: must be at least 0, got {max_new_tokens}")
    if max_length is not None and longest + max_new_tokens > max_length:
        raise ValueError(
            f"prompts: the longest has {longest} tokens, which with max_new_tokens="
            f"{max_new_tokens} is beyond the {max_length} that the model and capacity allow; "
            "shorten the prompt, lower max_new_tokens, or raise capacity"
        )
    tokens = np.zeros((batch, bucket(longest + max_new_tokens, least_capacity)), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    length = np.array([len(ids) for ids in rows], np.int32)
    return Request(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        limit=jnp.asarray(length + np.int32(max_new_tokens)),
        sampling=sampling_of(
            batch, temperature, top_k, top_p, min_p, stop_ids_of(batch, stop_token_ids, vocab_size)
        ),
        seeds=jnp.asarray(rng.draw_seeds(seed, batch), jnp.uint32),
    )


def sampling_of(batch: int, temperature, top_k, top_p, min_p, stop_ids) -> Sampling:
    """One value a row of each sampling setting, checked."""
    return Sampling(
        temperature=_per_row("temperature", temperature, batch, np.float32, low=0),
        top_k=_per_row("top_k", top_k, batch, np.int32, low=0),
        top_p=_per_row("top_p", top_p, batch, np.float32, low=0, high=1, open_low=True),
        min_p=_per_row("min_p", min_p, batch, np.float32, low=0, high=1),
        stop_ids=stop_ids,
    )


def _per_row(name, value, batch, dtype, *, low, high=np.inf, open_low=False):
    """Normalise a number or one a row to a strongly typed array: a weak type would retrace."""
    values = np.asarray(value, None if rng.is_flat(value) else object)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != batch):
        raise ValueError(f"{name}: give one number or one for each of {batch} rows, got {value!r}")
    whole = np.issubdtype(dtype, np.integer)
    if values.dtype.kind not in ("iu" if whole else "iuf"):
        kind = "an int" if whole else "a number"
        raise ValueError(f"{name}: must be {kind}, got {value!r}")
    high = min(high, np.iinfo(dtype).max if whole else float(np.finfo(dtype).max))
    if not ((values > low if open_low else values >= low) & (values <= high)).all():
        least = f"{'above' if open_low else 'at least'} {low}"
        raise ValueError(f"{name}: must be {least} and at most {high:g}, got {value!r}")
    return jnp.asarray(np.broadcast_to(values, (batch,)).astype(dtype))


def stop_ids_of(batch: int, ids: Sequence[int], vocab_size: int) -> Int[Array, "B I"]:
    """The same stop ids for every row, padded with -1 to a bucketed number."""
    if isinstance(ids, str) or not all(is_int(t) and 0 <= t < vocab_size for t in listed(ids)):
        raise ValueError(
            f"stop_token_ids: must be a list of token ids below {vocab_size}, got {ids!r}"
        )
    ids = listed(ids)
    padded = np.full(bucket(len(ids), 4), -1, np.int32)
    padded[: len(ids)] = ids
    return jnp.asarray(np.broadcast_to(padded, (batch, len(padded))))
