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
    x: Float[Array, "*B D"], scale: Float[Array, " D"], eps: float, offset: float = 0.0
) -> Float[Array, "*B D"]:
    """Divide by the root of the mean square, then scale (Zhang and Sennrich 2019, eq. 4).

    ``offset`` is added to the scale: Gemma stores it as a distance from 1.

    >>> y = rms_norm(jnp.array([1.0, 7.0]), jnp.ones(2), eps=0.0)
    >>> bool(jnp.allclose(y, jnp.array([0.2, 1.4])))
    True
    """
    y = x.astype(wide(x.dtype))
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * (scale.astype(y.dtype) + offset)).astype(x.dtype)


def layer_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], bias: Float[Array, " D"], eps: float
) -> Float[Array, "*B D"]:
    """Subtract the mean, divide by the deviation, scale and shift (Ba et al. 2016, eq. 4).

    >>> layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    y = x.astype(wide(x.dtype))
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale.astype(y.dtype) + bias.astype(y.dtype)).astype(x.dtype)


def soft_cap(x: Float[Array, "*B"], cap: float) -> Float[Array, "*B"]:
    """Bend values smoothly into -cap..cap (Gemma 2, section 2)."""
    return jnp.tanh(x / cap) * cap


def attention(
    query: Float[Array, "B T H D"],
    keys: Float[Array, "B S C"],
    values: Float[Array, "B S C"],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    mask: Bool[Array, "B T R"] | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    cap: float | None = None,
    block: int = BLOCK,
) -> Float[Array, "B T H D"]:
    """Attend from the T newest positions of each row to its slots of the cache.

    Keys and values of the new positions are in the cache already, at slots start..start+count-1,
    C = G * D channels of G heads; query head h reads key head h // (H / G). ``mask`` covers the
    last R slots ending with the T new ones; ``None`` is causal. Slots at or beyond start + count
    are never seen, whatever they hold, and a row of count 0 gives zeros. ``scale`` defaults to
    D ** -0.5. ``cap`` bends scores.

    ``window`` is how many positions an input sees, itself included: of the slots it would see,
    only the last so many (a mask shows one slot a position, in their order). Keys and values may
    then be a ring, slot s at s modulo S, if S >= window + T - 1.

    Only blocks in use are read, with a running softmax (Milakov and Gimelshein 2018, alg. 3):
    slots that are allocated but unused cost nothing, and no cache is copied or transposed whole.
    """
    batch, length, heads, dim = query.shape
    capacity, groups = keys.shape[1], keys.shape[2] // dim
    shared, block = heads // groups, min(block, capacity)
    scale = dim**-0.5 if scale is None else scale
    end = jnp.where(count > 0, start + count, 0)
    end = jnp.minimum(end, capacity) if window is None else end
    query = query.reshape(batch, length, groups, shared, dim)
    query = query.transpose(0, 2, 3, 1, 4).reshape(batch, groups, shared * length, dim)

    def add_block(index, carry):
        # The last block of an uneven capacity is moved back; what it repeats is not seen again.
        first = jnp.minimum(index * block, capacity - block)
        places = first + jnp.arange(block, dtype=jnp.int32)
        slots = places[None] if window is None else _held(places, end, capacity)
        used = (places >= index * block) & (slots < end[:, None])
        if window is not None:
            # Of a tree in several passes, the nodes of this one may begin behind its start.
            begin = start if mask is None else start + length - mask.shape[2]
            used = used & (slots >= jnp.maximum(begin - window + 1, 0)[:, None])
        seen = used[:, None] & visible(slots, start, length, mask, window)
        key, value = (
            jax.lax.dynamic_slice_in_dim(x, first, block, axis=1).reshape(batch, block, groups, dim)
            for x in (keys, values)
        )
        value = jnp.where(used[..., None, None], value, jnp.zeros_like(value))  # 0 * NaN is NaN
        seen = jnp.tile(seen, (1, shared, 1))[:, None]
        return _accumulate(carry, query, key, value, seen, scale, cap)

    dtype, rows = wide(query.dtype), query.shape[:-1]
    # The peak starts above UNSEEN: a block of which nothing is seen then adds exp(-5e29) = 0.
    empty = jnp.full(rows, UNSEEN / 2, dtype), jnp.zeros(rows, dtype), jnp.zeros_like(query, dtype)
    num_blocks = (jnp.minimum(end, capacity).max() + block - 1) // block
    _, total, mixed = jax.lax.fori_loop(0, num_blocks, add_block, empty)
    mixed = mixed / jnp.where(total > 0, total, 1.0)[..., None]
    mixed = mixed.reshape(batch, groups, shared, length, dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, heads, dim).astype(query.dtype)


def _accumulate(carry, query, key, value, seen, scale, cap):
    """Add one block to the running softmax: its peak, its total, and the values mixed so far."""
    peak, total, mixed = carry
    score = jnp.einsum("bgnd,bsgd->bgns", query, key, preferred_element_type=peak.dtype)
    score = score * scale if cap is None else soft_cap(score * scale, cap)
    score = jnp.where(seen, score, UNSEEN)
    top = jnp.maximum(peak, score.max(-1))
    weight, fade = jnp.exp(score - top[..., None]), jnp.exp(peak - top)
    part = jnp.einsum(
        "bgns,bsgd->bgnd", weight.astype(value.dtype), value, preferred_element_type=peak.dtype
    )
    return top, total * fade + weight.sum(-1), mixed * fade[..., None] + part


def _held(places: Int[Array, " S"], end: Int[Array, " B"], size: int) -> Int[Array, "B S"]:
    """The newest slot before ``end`` that a ring keeps at each place; negative where none is."""
    newest = end[:, None] - 1
    return newest - (newest - places) % size


def _newest(mask: Bool[Array, "B T R"], window: int) -> Bool[Array, "B T R"]:
    """Of the slots that each input sees, only the last ``window``."""
    return mask & (jnp.cumsum(mask[..., ::-1], axis=-1, dtype=jnp.int32)[..., ::-1] <= window)


def visible(
    slots: Int[Array, "#B S"],
    start: Int[Array, " B"],
    length: int,
    mask: Bool[Array, "B T R"] | None = None,
    window: int | None = None,
) -> Bool[Array, "B T S"]:
    """Whether input t of ``length`` sees these slots of its row, were they all in use.

    All before the mask's span are seen, in it what the mask says, after it none; of these, only
    the last ``window``.
    """
    if mask is None:
        newest = start[:, None] + jnp.arange(length, dtype=jnp.int32)
        seen = slots[:, None] <= newest[..., None]
        return seen if window is None else seen & (slots[:, None] > newest[..., None] - window)
    size = mask.shape[2]
    first = start[:, None] + length - size
    at = slots - first
    at = jnp.broadcast_to(at, (len(start), slots.shape[1]))
    inside = jnp.take_along_axis(mask, jnp.clip(at, 0, size - 1)[:, None], axis=2)
    before = (at < 0)[:, None]
    if window is not None:
        inside = jnp.take_along_axis(_newest(mask, window), jnp.clip(at, 0, size - 1)[:, None], 2)
        # A path has one slot a position: so many of it in the mask put the input that far on.
        newest = first + mask.sum(-1, dtype=jnp.int32) - 1
        before = before & (slots[:, None] > newest[..., None] - window)
    return before | (inside & ((at >= 0) & (at < size))[:, None])
