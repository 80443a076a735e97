"""Random bits by the vocabulary, as ``jax.random.bits`` makes them but several times sooner."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def bits(key: Key[Array, ""], size: int) -> UInt32[Array, " V"]:
    """The bits of ``jax.random.bits(key, (size,))`` for a threefry key; entry i depends on i alone.

    Threefry-2x32 of 20 rounds (Salmon et al. 2011). On a CPU JAX runs the rounds as a loop over
    arrays, which waits for memory; written out, XLA fuses them into one pass.

    >>> key = jax.random.key(7, impl="threefry2x32")
    >>> bool((bits(key, 5) == jax.random.bits(key, (5,), "uint32")).all())
    True
    """
    first, second = jax.random.key_data(key)
    schedule = (first, second, first ^ second ^ jnp.uint32(0x1BD11BDA))
    counter = jnp.arange(size, dtype=jnp.uint32)
    left, right = jnp.broadcast_to(first, counter.shape), counter + second
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            left = left + right
            right = ((right << turn) | (right >> (32 - turn))) ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return left ^ right
