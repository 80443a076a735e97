"""Where every random number comes from: one key for each use, none used twice.

A row's key is folded with a stream, then a counter, then (where there are several) an index:

    position  absolute position          Gumbel vectors of coupled drafts and plain decoding
    draft     length at the round start  drafters under ratio rules, going on along the path
    accept    length at the round start  the coins of a ratio rule
    last      length at the round start  residual, bonus, and plain rounds of a ratio run
    sample    index of the sample        the row keys of all samples of a prompt but the first

The length is a fresh counter because an active row emits at least one token a round. Ratio rules
must not be keyed by position: they look at coins beyond the accepted prefix, which the next round
would then reuse.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, Key, UInt32

from specjax import threefry

POSITION, DRAFT, ACCEPT, LAST, SAMPLE = range(5)


def is_flat(value: object) -> bool:
    """Whether a value is one number or a plain list of them: what numpy reads without complaint."""
    return not isinstance(value, Sequence) or not any(isinstance(x, Sequence) for x in value)


def draw_seeds(seed: int | Sequence[int | None] | None, batch: int) -> list[int]:
    """Give every row a seed: s + i for an int s, a list as it is, entropy for None in either.

    Raises:
        ValueError: a seed that is no int in 0..2**32 - 1, or a list whose length is not ``batch``.
    """
    if seed is None:
        seed = [None] * batch
    if isinstance(seed, list | tuple):
        seed = [secrets.randbits(32) if s is None else s for s in seed]
    given = np.asarray(seed, None if is_flat(seed) else object)
    if given.dtype.kind not in "iu" or given.shape not in ((), (batch,)):
        raise ValueError(f"seed: give one int, or one for each of {batch} rows, got {seed!r}")
    seeds = given + np.arange(batch) if given.ndim == 0 else given
    if not ((seeds >= 0) & (seeds < 2**32)).all():
        raise ValueError(f"seed: must be in 0..2**32 - 1 for every row, got {seed!r}")
    return seeds.tolist()


def row_keys(seeds: UInt32[Array, " B"]) -> Key[Array, " B"]:
    """Make one typed key per row; threefry always, since rbg differs between a row and a batch."""
    return jax.vmap(lambda s: jax.random.key(s, impl="threefry2x32"))(seeds)


def fold(key: Key[Array, "..."], data: Integer[Array, "..."] | int) -> Key[Array, "..."]:
    """Fold a number into each key of an array; shapes broadcast from the left, as rows do."""
    data = jnp.asarray(data, jnp.uint32)
    data = jnp.broadcast_to(data, key.shape) if data.ndim <= key.ndim else data
    key = jnp.broadcast_to(key.reshape(key.shape + (1,) * (data.ndim - key.ndim)), data.shape)
    flat = jax.vmap(jax.random.fold_in)(key.reshape(-1), data.reshape(-1))
    return flat.reshape(data.shape)


def stream(key: Key[Array, " B"], name: int, counter: Int[Array, " B"]) -> Key[Array, " B"]:
    """Key of one stream at one count, for every row."""
    return fold(fold(key, name), counter)


def uniforms(key: Key[Array, " B"], num: int, dtype=jnp.float32) -> Float[Array, "B N"]:
    """Draw ``num`` coins in [0, 1) a row, each from a key of its own."""
    index = jnp.broadcast_to(jnp.arange(num, dtype=jnp.uint32), (*key.shape, num))
    flat = jax.vmap(lambda k: jax.random.uniform(k, (), dtype))(fold(key, index).reshape(-1))
    return flat.reshape(index.shape)


def gumbel(key: Key[Array, "..."], size: int) -> Float[Array, "... V"]:
    """Draw a Gumbel vector from each key, in float32; entry v is the same whatever the size.

    All 32 bits count: of 23, as is jax's default, two of 50,000 entries would often share the
    maximum. They are laid out so that the finest steps are where the maximum lies, and the
    smallest value is finite: a token alone in its law must not lose to one that is forbidden.
    """
    flat = jax.vmap(partial(threefry.bits, size=size))(key.reshape(-1))
    uniform = jnp.minimum((flat.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform)).reshape(*key.shape, size)


def position_noise(
    key: Key[Array, " B"], first: Int[Array, " B"], num: int, size: int
) -> Float[Array, "B T V"]:
    """Draw the Gumbel vectors of positions first..first+num-1, over the target's vocabulary."""
    positions = first[:, None] + jnp.arange(num, dtype=first.dtype)
    return gumbel(fold(fold(key, POSITION), positions), size)
