"""Products with a kernel: on a CPU, over the few rows of a verifying pass, by another library.

XLA's first choice on a CPU, YNNPACK, packs all weights anew for two rows as for sixty. Eigen packs
in pieces that stay in the cache: over 3 to 32 rows a product then takes about two thirds of the
time (``python -m specjax.bench.products``).
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

FEW = range(3, 33)
"""Numbers of rows for which Eigen is the faster one."""

STEP = 8
"""Eigen multiplies so many rows about as soon as it does three."""

BLOCK = 1536
"""Columns of a wide kernel to take at a time, so that they stay in the cache while in use."""


def matmul(
    x: Float[Array, "*B I"], kernel: Float[Array, "I O"], *, dtype: DTypeLike | None = None
) -> Float[Array, "*B O"]:
    """x @ kernel, summed in and of ``dtype``, by default that of x.

    >>> matmul(jnp.ones((2, 2, 3)), jnp.ones((3, 1))).ravel().tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    plain = partial(jnp.matmul, preferred_element_type=dtype)
    if math.prod(x.shape[:-1]) not in FEW or not _is_float32(x, kernel, dtype):
        return plain(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=_by_eigen, default=plain)


def wide_matmul(
    x: Float[Array, "*B I"], kernel: Float[Array, "I O"], *, dtype: DTypeLike | None = None
) -> Float[Array, "*B O"]:
    """As ``matmul``, for a kernel of very many columns, such as an output head.

    On a CPU some columns at a time: for a kernel that is not cut between devices.
    """
    plain = partial(jnp.matmul, preferred_element_type=dtype)
    rows = math.prod(x.shape[:-1])
    if not 2 <= rows <= FEW[-1] or not _is_float32(x, kernel, dtype):
        return plain(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=_by_blocks, default=plain)


def _is_float32(x: Array, kernel: Array, dtype: DTypeLike | None) -> bool:
    return {x.dtype, kernel.dtype, jnp.dtype(dtype or x.dtype)} == {jnp.dtype(jnp.float32)}


def _by_eigen(x: Float[Array, "*B I"], kernel: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """A product whose left side is stored as columns, which YNNPACK does not take."""
    rows = x.reshape(-1, x.shape[-1])
    num = len(rows)
    rows = jnp.pad(rows, ((0, max(STEP - num, 0)), (0, 0)))
    # Without the barrier XLA would take the transposition back.
    columns = jax.lax.optimization_barrier(rows.T)
    y = jax.lax.dot_general(columns, kernel, (((0,), (0,)), ((), ())))
    return y[:num].reshape(*x.shape[:-1], kernel.shape[1])


def _by_blocks(x: Float[Array, "*B I"], kernel: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """Copy some columns into the cache, multiply, go on."""
    rows, outputs = x.reshape(-1, x.shape[-1]), kernel.shape[1]
    size = min(BLOCK, outputs)

    def step(index, y):
        first = index * size  # reading and writing alike move the last block back to fit
        block = jax.lax.dynamic_slice_in_dim(kernel, first, size, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(y, _by_eigen(rows, block), first, axis=1)

    y = jnp.zeros((len(rows), outputs), x.dtype)
    y = jax.lax.fori_loop(0, -(-outputs // size), step, y)
    return y.reshape(*x.shape[:-1], outputs)
