"""Weight-only int8: symmetric, one scale for each output channel, read as stored.

A quarter of float32's bytes are read for each product, half of bfloat16's; activations, sums and
caches stay what they were. Weights are [out, in], as on the Hub: each channel lies in one piece.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8

from specjax.nn import wide

FEW_ROWS = 9
"""Rows up to which the sum over lanes is no slower than float32's product, on two cores."""

BLOCK = 2**20
"""Weights taken at a time: their float copy, where there is one, stays in the cache."""


def quantize(
    weight: Float[np.ndarray, "*E O I"],
) -> tuple[Int8[np.ndarray, "*E O I"], Float[np.ndarray, "*E O"]]:
    """Round each output channel to the nearest of -127..127 steps of its own float32 scale.

    |weight - quantized * scale| <= scale / 2. A channel of zeros has scale 1. Experts are leading
    axes.

    >>> quantized, scale = quantize(np.array([[1.27, -0.64], [0.0, 0.0]], np.float32))
    >>> quantized.tolist(), scale.round(4).tolist()
    ([[127, -64], [0, 0]], [0.009999999776482582, 1.0])

    Raises:
        ValueError: a weight is infinite or NaN.
    """
    weight = np.asarray(weight, np.float32)
    peak = np.abs(weight).max(axis=-1)
    if not np.isfinite(peak).all():
        raise ValueError("weight: holds infinities or NaN; is the checkpoint whole?")
    # A scale below the smallest normal number would lose the digits that the bound needs.
    scale = np.maximum(peak / np.float32(127), np.finfo(np.float32).tiny)
    scale = np.where(peak > 0, scale, np.float32(1))
    return np.rint(weight / scale[..., None]).astype(np.int8), scale


def matmul(
    x: Float[Array, "*B I"],
    weight: Int8[Array, "O I"],
    scale: Float[Array, " O"],
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*B O"]:
    """(x @ weight.T) * scale, summed in float32 or wider; of ``dtype``, by default that of x.

    >>> weight, scale = jnp.array([[127, -64]], jnp.int8), jnp.array([0.01], jnp.float32)
    >>> matmul(jnp.array([[1.0, 2.0]]), weight, scale).round(4).tolist()
    [[-0.009999999776482582]]
    """
    rows = x.reshape(-1, x.shape[-1])
    # Accelerators convert inside the product. XLA on the CPU writes float copies instead, of all
    # layers at once where it can: ten times slower than a product in float32.
    y = jax.lax.platform_dependent(rows, weight, cpu=_by_blocks, default=_plain)
    y = (y * scale.astype(y.dtype)).astype(x.dtype if dtype is None else dtype)
    return y.reshape(*x.shape[:-1], -1)


def _plain(x: Float[Array, "R I"], weight: Int8[Array, "O I"]) -> Float[Array, "R O"]:
    """The definition, but for the scale; every int8 is exact in bfloat16."""
    return jnp.einsum("ri,oi->ro", x, weight.astype(x.dtype), preferred_element_type=wide(x.dtype))


def _by_blocks(x: Float[Array, "R I"], weight: Int8[Array, "O I"]) -> Float[Array, "R O"]:
    """Some output channels at a time, so that no float copy of the whole ever is in memory.

    Always a loop of at least two: what does not depend on its index XLA converts ahead of time,
    for all layers, and what computes x (a norm, say) it would compute anew for each channel.
    """
    rows, (outputs, inputs) = x.shape[0], weight.shape
    x = x.astype(wide(x.dtype))
    lanes = _lanes(inputs) if rows <= FEW_ROWS else None
    num = min(outputs, max(2, -(-outputs * inputs // BLOCK)))
    size = -(-outputs // num)

    def step(index, y):
        first = index * size  # reading and writing alike move the last block back to fit
        if lanes is None:
            part = jax.lax.dynamic_slice_in_dim(weight, first, size).astype(x.dtype) @ x.T
        else:
            part = _by_lanes(x, weight, first, size, lanes)
        return jax.lax.dynamic_update_slice_in_dim(y, part, first, axis=0)

    return jax.lax.fori_loop(0, num, step, jnp.zeros((outputs, rows), x.dtype)).T


def _by_lanes(
    x: Float[Array, "R I"], weight: Int8[Array, "O I"], first: Int[Array, ""], size: int, lanes: int
) -> Float[Array, "S R"]:
    """Channels first..first+size-1, term by term: read as int8 and converted in registers."""
    total = jnp.zeros((size, x.shape[0], lanes), x.dtype)
    for at in range(0, x.shape[1], lanes):
        part = jax.lax.dynamic_slice(weight, (first, at), (size, lanes))
        total = total + x[None, :, at : at + lanes] * part[:, None].astype(x.dtype)
    # A product, since XLA would fuse a reduction with the terms and compute them one by one.
    return (total.reshape(-1, lanes) @ jnp.ones((lanes, 1), x.dtype)).reshape(size, -1)


def _lanes(inputs: int) -> int | None:
    """Lanes that leave at least 16 terms (with fewer LLVM falls back on scalars), None if none."""
    fitting = [n for n in (128, 96, 64, 32) if inputs % n == 0 and inputs // n >= 16]
    return fitting[0] if fitting else None
