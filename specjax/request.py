"""From what a user asks for to arrays of fixed shapes, with every argument checked by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, UInt32

from specjax import rng
from specjax.types import Sampling

Message = dict[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


@struct.dataclass
class Request:
    """Prompts and settings of one call as arrays; shapes are bucketed, so few traces serve all."""

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]
    limit: Int[Array, " B"]
    sampling: Sampling
    stop_ids: Int[Array, "B I"]
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


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """Tell one prompt from several: a string, token ids or chat messages are one."""
    if isinstance(prompts, str):
        return [prompts]
    batch = list(prompts)
    if not batch:
        raise ValueError("prompts: is empty; give a string, token ids or chat messages")
    if isinstance(batch[0], int | np.integer | dict):
        return [batch]
    return batch


def encode(prompts: Prompt | Sequence[Prompt], tokenizer: Any, vocab_size: int) -> list[list[int]]:
    """Turn prompts into token ids.

    Raises:
        ValueError: a prompt is empty, an id is outside the vocabulary, or text comes without a
            tokenizer.
    """
    rows = []
    for i, prompt in enumerate(as_batch(prompts)):
        ids = _encode_one(prompt, tokenizer, i)
        if not ids:
            raise ValueError(f"prompts: prompt {i} is empty; give it at least one token")
        outside = [t for t in ids if not 0 <= t < vocab_size]
        if outside:
            raise ValueError(
                f"prompts: token id {outside[0]} of prompt {i} is outside the vocabulary "
                f"of {vocab_size}"
            )
        rows.append(ids)
    return rows


def _encode_one(prompt: Any, tokenizer: Any, index: int) -> list[int]:
    if not isinstance(prompt, str) and not any(isinstance(x, dict) for x in prompt):
        if not all(isinstance(t, int | np.integer) for t in prompt):
            raise ValueError(f"prompts: prompt {index} must be text, token ids or chat messages")
        return [int(t) for t in prompt]
    if tokenizer is None:
        raise ValueError(
            "prompts: text needs a tokenizer, and the target has none; give token ids, "
            "or Decoder(..., tokenizer=...)"
        )
    if not prompt:
        return []
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return tokenizer.apply_chat_template(prompt)


def build(
    rows: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    max_length: int | None,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    stop_token_ids: Sequence[int] = (),
    seed: int | Sequence[int] | None = 0,
    least_capacity: int = 128,
) -> Request:
    """Check every setting and lay a batch out in arrays.

    Raises:
        ValueError: a setting is out of range, or a prompt and its budget do not fit.
    """
    batch, longest = len(rows), max(map(len, rows))
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int | np.integer):
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
        sampling=sampling_of(batch, temperature, top_k, top_p, min_p),
        stop_ids=stop_ids_of(batch, stop_token_ids),
        seeds=jnp.asarray(rng.draw_seeds(seed, batch), jnp.uint32),
    )


def sampling_of(batch: int, temperature, top_k, top_p, min_p) -> Sampling:
    """One value a row of each sampling setting, checked."""
    return Sampling(
        temperature=_per_row("temperature", temperature, batch, np.float32, low=0),
        top_k=_per_row("top_k", top_k, batch, np.int32, low=0),
        top_p=_per_row("top_p", top_p, batch, np.float32, low=0, high=1, open_low=True),
        min_p=_per_row("min_p", min_p, batch, np.float32, low=0, high=1),
    )


def _per_row(name, value, batch, dtype, *, low, high=np.inf, open_low=False):
    """Normalise a number or one a row to a strongly typed array: a weak type would retrace."""
    values = np.asarray(value)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != batch):
        raise ValueError(f"{name}: give one number or one for each of {batch} rows, got {value!r}")
    whole = np.issubdtype(dtype, np.integer)
    if values.dtype.kind not in ("iu" if whole else "iuf"):
        kind = "an int" if whole else "a number"
        raise ValueError(f"{name}: must be {kind}, got {value!r}")
    inside = (values > low if open_low else values >= low) & (values <= high) & np.isfinite(values)
    if not inside.all():
        bounds = f"{'(' if open_low else '['}{low}, {'inf)' if high == np.inf else f'{high}]'}"
        raise ValueError(f"{name}: must be in {bounds}, got {value!r}")
    return jnp.asarray(np.broadcast_to(values, (batch,)).astype(dtype))


def stop_ids_of(batch: int, ids: Sequence[int]) -> Int[Array, "B I"]:
    """The same stop ids for every row, padded with -1 to a bucketed number."""
    padded = np.full(bucket(len(ids), 4), -1, np.int32)
    padded[: len(ids)] = list(ids)
    return jnp.asarray(np.broadcast_to(padded, (batch, len(padded))))
