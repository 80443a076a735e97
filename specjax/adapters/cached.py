"""Modules that keep a cache: the adapter holds its arrays, the module reads and writes them.

The module is called as ``module(tokens, positions, mask, cache)`` and returns logits [B, T, V].
Each layer hands its new entries over, once a pass, and attends to what it gets back::

    keys, values = cache.update(layer, keys, values)  # [B, T, ...] in, [B, S, ...] out
    scores = jnp.where(mask[:, None], scores, -1e30)  # mask [B, T, S] has it all: see below

``mask`` is False for scratch, for other branches of a draft tree and for the future. Turn and
place tokens by ``positions``: in a draft tree a slot's index is not its position (a layer with a
window may store positions as one more entry). ``update`` works by side effect, so layers run in a
Python loop, not under a ``scan`` or ``remat``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.adapters.adapted import Adapted, SlotCache, refuse_layers
from specjax.cache import write_slots
from specjax.nn import visible


@dataclasses.dataclass(frozen=True)
class Entries:
    """What every layer keeps for one slot: a tuple of pytrees a layer, hashable."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, cache: Sequence[Any]) -> Entries:
        """Check ``cache``: for each layer a tuple, an entry for each argument of ``update``.

        Raises:
            ValueError: no layers, a layer that is no tuple, or an entry of another kind.
        """
        if not isinstance(cache, tuple | list) or not cache:
            raise ValueError(
                "cache: must be a list with a tuple for each layer, or None for a module that "
                f"keeps none; got {cache!r:.60}"
            )
        for index, layer in enumerate(cache):
            if not isinstance(layer, tuple | list):
                raise ValueError(
                    f"cache: layer {index} must be a tuple, with an entry for each array given to "
                    f"cache.update; got {layer!r:.60}"
                )
        leaves, structure = jax.tree.flatten(tuple(tuple(layer) for layer in cache))
        for leaf in leaves:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                raise ValueError(
                    "cache: entries must be jax.ShapeDtypeStruct(shape, dtype), the shape without "
                    f"rows and slots; got {leaf!r:.60}"
                )
        return cls(structure, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))

    def zeros(self, batch: int, capacity: int) -> tuple[Any, ...]:
        """Allocate [B, S, ...] arrays, each its own, so that all can be donated."""
        arrays = [jnp.zeros((batch, capacity, *x.shape), x.dtype) for x in self.leaves]
        return jax.tree.unflatten(self.structure, arrays)


class CacheWriter:
    """The ``cache`` that a module is called with: takes new entries, gives all of them back."""

    def __init__(self, entries: tuple[Any, ...], start: Array, count: Array, num: int) -> None:
        self._entries = list(entries)
        self._start, self._count, self._num = start, count, num
        self._unwritten = set(range(len(entries)))

    def update(self, layer: int, *new: Any) -> tuple[Any, ...]:
        """Store the T new entries [B, T, ...] of a layer and return all of its slots [B, S, ...].

        Stored in the dtype that ``cache=`` at construction says.

        Raises:
            ValueError: an unknown layer, one written before, or entries of another shape.
        """
        self._check(layer, new)
        written = jax.tree.map(
            lambda old, x: write_slots(old, x, self._start, self._count),
            self._entries[layer],
            new,
        )
        self._entries[layer] = written
        self._unwritten.remove(layer)
        return written

    def _check(self, layer: int, new: tuple[Any, ...]) -> None:
        total = len(self._entries)
        if not isinstance(layer, Integral) or not 0 <= layer < total:
            raise ValueError(
                f"cache.update: layer {layer!r:.40} is unknown; the cache given to the adapter has "
                f"layers 0..{total - 1}"
            )
        if layer not in self._unwritten:
            raise ValueError(
                f"cache.update: layer {layer} is written twice in a pass; number the layers"
            )
        old = self._entries[layer]
        lead = (self._start.shape[0], self._num)
        wanted = jax.tree.map(lambda x: [*lead, *x.shape[2:]], old)
        found = jax.tree.map(lambda x: list(jnp.shape(x)), new)
        if wanted != found:
            raise ValueError(
                f"cache.update: layer {layer} takes entries of shapes {wanted}, got {found}; the "
                "shapes given to the adapter are those without rows and slots"
            )

    def finish(self) -> SlotCache:
        """All entries, once the module has run.

        Raises:
            ValueError: a layer was never written.
        """
        if self._unwritten:
            raise ValueError(
                f"cache: layers {sorted(self._unwritten)} are never written; the module must call "
                "cache.update(layer, ...) once a pass for each, or give the adapter fewer layers"
            )
        return SlotCache(tuple(self._entries))


@struct.dataclass(kw_only=True)
class Cached(Adapted):
    """A module with a cache as a ``Target``; ``entries`` says what its layers keep."""

    entries: Entries = struct.field(pytree_node=False)

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> SlotCache:
        """Allocate ``capacity`` slots a row; ``scratch`` is for rings, and there are none."""
        return SlotCache(self.entries.zeros(batch, capacity))

    def extend(
        self,
        inputs: Int[Array, "B T"] | Float[Array, "B T D"],
        start: Int[Array, " B"],
        cache: SlotCache,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T V"], SlotCache, tuple[()]]:
        """Run T positions of each row, as ``specjax.protocols.Target.extend`` says.

        Raises:
            ValueError: hidden inputs, ``layers`` or ``capture``, or a module that breaks the
                contract.
        """
        refuse_layers(inputs, layers, capture)
        num = inputs.shape[1]
        if positions is None:
            positions = start[:, None] + jnp.arange(num, dtype=jnp.int32)
        if self.max_length is not None:
            # Drafts may reach past the end. What a table of positions gives there may be NaN,
            # which no mask keeps out of a product.
            positions = jnp.minimum(positions, self.max_length - 1)
        slots = jnp.arange(cache.capacity, dtype=jnp.int32)[None]
        seen = visible(slots, start, num, mask)
        writer = CacheWriter(cache.entries, start, count, num)
        logits = self.run(inputs, positions, seen, writer)
        return logits, writer.finish(), ()
