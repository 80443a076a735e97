"""The target drafts for itself with some of its layers left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.cache import KVCache
from specjax.drafters.draft_model import ModelChain
from specjax.drafters.own_cache import shown_layers


@struct.dataclass
class SomeLayers:
    """Some layers of a target as a model, with the target's own embedding, norm and head."""

    target: Any
    layers: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.target.max_length

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> Any:
        """Allocate a cache; a layer that never runs is left with one slot."""
        cache = self.target.init_cache(batch, capacity, scratch=scratch)
        if not isinstance(cache, KVCache):
            return cache
        pairs = (
            pair if index in self.layers else (pair[0][:, :1], pair[1][:, :1])
            for index, pair in enumerate(cache.layers)
        )
        return dataclasses.replace(cache, layers=tuple(pairs))

    def extend(
        self,
        inputs: Int[Array, "B T"],
        start: Int[Array, " B"],
        cache: Any,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Any, tuple]:
        """Run the chosen layers, each on what the one before it left."""
        return self.target.extend(
            inputs,
            start,
            cache,
            count=count,
            positions=positions,
            mask=mask,
            layers=self.layers,
        )

    def unembed(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """The target's own final norm and head."""
        return self.target.unembed(hidden)


@struct.dataclass
class LayerSkip(ModelChain):
    """Draft with the target's ``layers``, the others skipped (Zhang et al. 2024, Draft & Verify).

    ``layers`` are any of the target's, ascending. The draft has a cache of its own, and nothing
    of it is used again in verification (``EarlyExit`` does that, for the first layers only).
    """

    layers: tuple[int, ...] = struct.field(pytree_node=False)
    draft_length: int = struct.field(pytree_node=False, default=4)
    catch_up: int = struct.field(pytree_node=False, default=32)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "layers", _ascending(self.layers))

    def _model(self, target: Any) -> SomeLayers:
        return SomeLayers(target, self.layers)

    def validate(self, target: Any) -> None:
        """Refuse a target without these layers.

        Raises:
            ValueError: the target shows no layers, or has fewer.
        """
        num = shown_layers(target, type(self).__name__)
        if self.layers[-1] >= num:
            raise ValueError(
                f"layers: the target has layers 0..{num - 1}, got {self.layers}; leave out those "
                "from there on"
            )


def _ascending(layers: Any) -> tuple[int, ...]:
    """Check what is known without a target.

    Raises:
        ValueError: no layer, or layers that do not ascend from 0 on.
    """
    chosen: tuple[int, ...] = ()
    if isinstance(layers, Sequence) and all(isinstance(i, Integral) for i in layers):
        chosen = tuple(int(i) for i in layers)
    if not chosen or chosen[0] < 0 or list(chosen) != sorted(set(chosen)):
        raise ValueError(
            f"layers: must be the layers to run, ascending from 0 on, such as (0, 1, 4, 5); got "
            f"{layers!r}"
        )
    return chosen
