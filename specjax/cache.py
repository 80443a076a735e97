"""Static-shape key/value storage: one slot a position, one row a sequence.

Slots 0..length-2 are committed and everything after is scratch, so a rollback moves no data:
``length`` simply does not advance. Only an accepted tree path is moved (``compact``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from specjax.protocols import Cache
from specjax.sharding import Layout


def write_slots(
    slots: Shaped[Array, "B S ..."],
    new: Shaped[Array, "B T ..."],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    *,
    ring: bool = False,
) -> Shaped[Array, "B S ..."]:
    """Write new[:, :count] to slots start..start+count-1 of each row, and nothing else.

    In a ``ring`` slot s lies at s modulo S. Every dropped write gets an out-of-range index of its
    own, so the scatter is unique and in place (a shared one would not be; negative indices would
    wrap before they are dropped).
    """
    size = slots.shape[1]
    offset = jnp.arange(new.shape[1], dtype=jnp.int32)

    def one_row(row, values, first, used):
        index = (first + offset) % size if ring else first + offset
        index = jnp.where(offset < used, index, size + offset)
        return row.at[index].set(values, mode="drop", unique_indices=True)

    return jax.vmap(one_row)(slots, new.astype(slots.dtype), start, count)


def move_slots(
    slots: Shaped[Array, "B S ..."],
    start: Int[Array, " B"],
    path: Int[Array, "B K"],
    *,
    ring: bool = False,
) -> Shaped[Array, "B S ..."]:
    """Copy slot start + path[:, j] to slot start + 1 + j in each row."""
    size = slots.shape[1]

    def one_row(row, first, at):
        return row[(first + at) % size if ring else first + at]

    kept = jax.vmap(one_row)(slots, start, path)
    return write_slots(slots, kept, start + 1, jnp.full_like(start, path.shape[1]), ring=ring)


@struct.dataclass
class KVCache:
    """Keys and values of every layer, a pair of [B, S, C] arrays each: C = H * D, head by head.

    As one axis, heads and their channels have one order in memory that all passes want: a TPU pads
    [H, D] to its tiles, and copies whole caches between passes that want them in another order.
    ``rings`` says which layers keep the newest slots only, in a circle, and ``scratch`` how far
    ahead of a start they may be written. ``experts`` is how many experts each layer read in its
    last pass over each row; None where there are none.
    """

    layers: tuple[tuple[Float[Array, "B S C"], Float[Array, "B S C"]], ...]
    experts: Int[Array, "B Layers"] | None = None
    rings: tuple[bool, ...] = struct.field(pytree_node=False, default=())
    scratch: int | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def zeros(
        cls,
        batch: int,
        capacity: int,
        num_heads: int,
        head_dim: int,
        dtype,
        *,
        windows: Sequence[int | None],
        scratch: int | None = None,
        counts_experts: bool = False,
    ) -> KVCache:
        """Allocate an empty cache; keys and values are separate arrays, so both can be donated.

        A layer that sees a window keeps that many slots and ``scratch`` more, which is how far
        ahead of a later start anything is written: a pass then overwrites nothing that it, or one
        after a rejected draft, still sees. Without ``scratch`` every slot is kept.
        """

        def pair(window: int | None):
            size = capacity
            if window is not None and scratch is not None:
                size = min(capacity, window + scratch)
            shape = (batch, size, num_heads * head_dim)
            return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)

        return cls(
            layers=tuple(pair(window) for window in windows),
            experts=jnp.zeros((batch, len(windows)), jnp.int32) if counts_experts else None,
            rings=tuple(None not in (window, scratch) for window in windows),
            scratch=scratch if any(window is not None for window in windows) else None,
        )

    def write(
        self,
        layer: int,
        new: tuple[Float[Array, "B T H D"], Float[Array, "B T H D"]],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
    ) -> KVCache:
        """Store keys and values of ``count`` new positions of one layer.

        Raises:
            ValueError: the pass is wider than the ring's scratch.
        """
        ring, width = self.rings[layer], new[0].shape[1]
        if ring and self.scratch is not None and width > self.scratch:
            raise ValueError(
                f"a pass over {width} positions is wider than the {self.scratch} that this cache "
                f"has room for; allocate it with init_cache(..., scratch={width})"
            )
        pair = tuple(
            write_slots(old, values.reshape(*values.shape[:2], -1), start, count, ring=ring)
            for old, values in zip(self.layers[layer], new, strict=True)
        )
        return dataclasses.replace(
            self, layers=(*self.layers[:layer], pair, *self.layers[layer + 1 :])
        )

    def count_experts(self, layer: int, num: Int[Array, " B"]) -> KVCache:
        """Note how many experts a layer has read in this pass."""
        assert self.experts is not None
        return dataclasses.replace(self, experts=self.experts.at[:, layer].set(num))

    def laid_out(self, layout: Layout, num_heads: int) -> KVCache:
        """Lie on a mesh: cut between rows and, where the devices divide them, between heads."""

        def cut(x):
            axes = ("batch", None, "kv_heads")[: x.ndim]
            return layout.constrain(x, axes, {"batch": x.shape[0], "kv_heads": num_heads})

        return jax.tree.map(cut, self)

    def insert(self, slot: Int[Array, ""] | int, one: KVCache) -> KVCache:
        """Put the single row of ``one`` into row ``slot``."""
        return jax.tree.map(lambda x, y: x.at[slot].set(y[0]), self, one)

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> KVCache:
        """Make an accepted tree path contiguous: slot start + path[:, j] to start + 1 + j."""
        moved = tuple(
            tuple(move_slots(slots, start, path, ring=ring) for slots in pair)
            for pair, ring in zip(self.layers, self.rings, strict=True)
        )
        return dataclasses.replace(self, layers=moved)


def freeze(active: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Keep the old small state of other rows. Caches pass: a where over one would copy it."""

    def choose(fresh, kept):
        if isinstance(fresh, Cache):
            return fresh
        return jnp.where(active.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, kept)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, Cache))
