"""Layers without weights of their own: normalisation, and attention over a cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

BLOCK = 128
"""Slots that attention reads at a time."""

UNSEEN = -1e30
"""The score of a slot that is not seen: below all others, yet finite, so no NaN arises."""


def wide(dtype) -> jnp.dtype:
    """The type of sums and softmaxes: float32, or ``dtype`` where that is wider."""
    return dtype if jnp.finfo(dtype).bits > 32 else jnp.dtype(jnp.float32)


def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], eps: float
) -> Float[Array, "*B D"]:
    """Divide by the root of the mean square, then scale (Zhang and Sennrich 2019, eq. 4).

    >>> y = rms_norm(jnp.array([1.0, 7.0]), jnp.ones(2), eps=0.0)
    >>> bool(jnp.allclose(y, jnp.array([0.2, 1.4])))
    True
    """
    y = x.astype(wide(x.dtype))
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale.astype(y.dtype)).astype(x.dtype)


def attention(
    query: Float[Array, "B T H D"],
    keys: Float[Array, "B S G D"],
    values: Float[Array, "B S G D"],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    mask: Bool[Array, "B T R"] | None = None,
    *,
    scale: float | None = None,
    block: int = BLOCK,
) -> Float[Array, "B T H D"]:
    """Attend from the T newest positions of each row to its slots of the cache.

    Keys and values of the new positions are in the cache already, at slots start..start+count-1.
    Query head h reads key head h // (H / G). ``mask`` covers the last R slots ending with the T
    new ones; ``None`` is causal. Slots at or beyond start + count are never seen, whatever they
    hold, and a row of count 0 gives zeros. ``scale`` defaults to D ** -0.5.

    Only blocks in use are read, with a running softmax (Milakov and Gimelshein 2018, alg. 3):
    slots that are allocated but unused cost nothing, and no cache is copied or transposed whole.
    """
    batch, length, heads, dim = query.shape
    capacity, groups = keys.shape[1:3]
    shared, block = heads // groups, min(block, capacity)
    scale = dim**-0.5 if scale is None else scale
    end = jnp.minimum(jnp.where(count > 0, start + count, 0), capacity)
    query = query.reshape(batch, length, groups, shared, dim)
    query = query.transpose(0, 2, 3, 1, 4).reshape(batch, groups, shared * length, dim)

    def add_block(index, carry):
        # The last block of an uneven capacity is moved back; what it repeats is not seen again.
        first = jnp.minimum(index * block, capacity - block)
        slots = first + jnp.arange(block, dtype=jnp.int32)
        used = (slots >= index * block) & (slots < end[:, None])
        seen = used[:, None] & _visible(slots, start, length, mask)
        key = jax.lax.dynamic_slice_in_dim(keys, first, block, axis=1)
        value = jax.lax.dynamic_slice_in_dim(values, first, block, axis=1)
        value = jnp.where(used[..., None, None], value, jnp.zeros_like(value))  # 0 * NaN is NaN
        seen = jnp.tile(seen, (1, shared, 1))[:, None]
        return _accumulate(carry, query, key, value, seen, scale)

    dtype, rows = wide(query.dtype), query.shape[:-1]
    # The peak starts above UNSEEN: a block of which nothing is seen then adds exp(-5e29) = 0.
    empty = jnp.full(rows, UNSEEN / 2, dtype), jnp.zeros(rows, dtype), jnp.zeros_like(query, dtype)
    _, total, mixed = jax.lax.fori_loop(0, (end.max() + block - 1) // block, add_block, empty)
    mixed = mixed / jnp.where(total > 0, total, 1.0)[..., None]
    mixed = mixed.reshape(batch, groups, shared, length, dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, heads, dim).astype(query.dtype)


def _accumulate(carry, query, key, value, seen, scale):
    """Add one block to the running softmax: its peak, its total, and the values mixed so far."""
    peak, total, mixed = carry
    score = jnp.einsum("bgnd,bsgd->bgns", query, key, preferred_element_type=peak.dtype)
    score = jnp.where(seen, score * scale, UNSEEN)
    top = jnp.maximum(peak, score.max(-1))
    weight, fade = jnp.exp(score - top[..., None]), jnp.exp(peak - top)
    part = jnp.einsum(
        "bgns,bsgd->bgnd", weight.astype(value.dtype), value, preferred_element_type=peak.dtype
    )
    return top, total * fade + weight.sum(-1), mixed * fade[..., None] + part


def _visible(
    slots: Int[Array, " S"],
    start: Int[Array, " B"],
    length: int,
    mask: Bool[Array, "B T R"] | None,
) -> Bool[Array, "B T S"]:
    """Whether input t of each row sees these slots, were they all in use."""
    if mask is None:
        newest = start[:, None] + jnp.arange(length, dtype=jnp.int32)
        return slots <= newest[..., None]
    window = mask.shape[2]
    at = slots - (start[:, None] + length - window)
    inside = jnp.take_along_axis(mask, jnp.clip(at, 0, window - 1)[:, None], axis=2)
    return (at < 0)[:, None] | (inside & (at < window)[:, None])
