"""Static-shape key/value storage: one slot a position, one row a sequence.

Slots 0..length-2 are committed and everything after is scratch, so a rollback moves no data:
``length`` simply does not advance. Only an accepted tree path is moved (``compact``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from specjax.protocols import Cache


def write_slots(
    slots: Shaped[Array, "B S ..."],
    new: Shaped[Array, "B T ..."],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
) -> Shaped[Array, "B S ..."]:
    """Write new[:, :count] to slots start..start+count-1 of each row, and nothing else.

    Every dropped write gets an out-of-range index of its own, so the scatter is unique and in
    place (a shared one would not be; negative indices would wrap before they are dropped).
    """
    size = slots.shape[1]
    offset = jnp.arange(new.shape[1], dtype=jnp.int32)

    def one_row(row, values, first, used):
        index = jnp.where(offset < used, first + offset, size + offset)
        return row.at[index].set(values, mode="drop", unique_indices=True)

    return jax.vmap(one_row)(slots, new.astype(slots.dtype), start, count)


def move_slots(
    slots: Shaped[Array, "B S ..."], start: Int[Array, " B"], path: Int[Array, "B K"]
) -> Shaped[Array, "B S ..."]:
    """Copy slot start + path[:, j] to slot start + 1 + j in each row."""
    kept = jax.vmap(lambda row, first, at: row[first + at])(slots, start, path)
    return write_slots(slots, kept, start + 1, jnp.full_like(start, path.shape[1]))


@struct.dataclass
class KVCache:
    """Keys and values of every layer, a pair of [B, S, H, D] arrays each."""

    layers: tuple[tuple[Float[Array, "B S H D"], Float[Array, "B S H D"]], ...]

    @classmethod
    def zeros(
        cls, batch: int, capacity: int, num_layers: int, num_heads: int, head_dim: int, dtype
    ) -> KVCache:
        """Allocate an empty cache; keys and values are separate arrays, so both can be donated."""
        shape = (batch, capacity, num_heads, head_dim)
        return cls(
            tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(num_layers))
        )

    def write(
        self,
        layer: int,
        new: tuple[Float[Array, "B T H D"], Float[Array, "B T H D"]],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
    ) -> KVCache:
        """Store keys and values of ``count`` new positions of one layer."""
        pair = tuple(
            write_slots(old, values, start, count)
            for old, values in zip(self.layers[layer], new, strict=True)
        )
        return dataclasses.replace(
            self, layers=(*self.layers[:layer], pair, *self.layers[layer + 1 :])
        )

    def insert(self, slot: Int[Array, ""] | int, one: KVCache) -> KVCache:
        """Put the single row of ``one`` into row ``slot``."""
        return jax.tree.map(lambda x, y: x.at[slot].set(y[0]), self, one)

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> KVCache:
        """Make an accepted tree path contiguous: slot start + path[:, j] to start + 1 + j."""
        return jax.tree.map(lambda slots: move_slots(slots, start, path), self)


def freeze(active: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Keep the old small state of other rows. Caches pass: a where over one would copy it."""

    def choose(fresh, kept):
        if isinstance(fresh, Cache):
            return fresh
        return jnp.where(active.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, kept)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, Cache))
