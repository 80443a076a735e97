"""What one device holds of a model: its part of every weight, and of the caches.

Shapes come from the code that runs: nothing is computed twice, so nothing can disagree.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from specjax.cache import KVCache
from specjax.models import Config, DecoderLM, sharded, weight_sharding
from specjax.models.layers import pack, parameters
from specjax.plan.setup import PLACEMENTS
from specjax.plan.tiles import tiled_bytes
from specjax.sharding import RULES, Layout

EXPERT_KERNELS = ("gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A device that there is none of: enough to ask how arrays would be cut."""

    id: int
    platform: str = "none"


def stand_in_mesh(data: int, model: int, platform: str = "none") -> Mesh:
    """A mesh of devices that need not exist.

    >>> dict(stand_in_mesh(2, 4).shape)
    {'data': 2, 'model': 4}
    """
    every = [StandIn(i, platform) for i in range(data * model)]
    devices = np.array(every, object).reshape(data, model)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


class Parts(Layout):
    """A layout that gives the shape of one device's part where others lay an array out."""

    def constrain(self, x: Any, axes: Any, units: Any) -> Any:
        part = self.sharding(axes, units).shard_shape(x.shape)
        return jax.ShapeDtypeStruct(part, x.dtype)


@dataclasses.dataclass(frozen=True, eq=False)  # there is one of each: shard_of remembers
class Shard:
    """One device's part of a model. Shapes are those of its part, ``whole`` those of the model.

    ``config`` is the one that runs, with copies of key heads; ``num_data`` and ``num_model`` are
    the devices that rows and weights are cut along. ``tiled`` says that the device is a TPU.
    """

    config: Config
    layout: Layout
    dtype: str
    weights: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, tuple[int, ...]]
    tiled: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a weight and of a number in a cache."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def num_data(self) -> int:
        return self.layout.size("batch")

    @property
    def num_model(self) -> int:
        """Devices that the weights are cut between; 1 where each device holds all of them."""
        return max(self.layout.size(axis) for axis in RULES if axis != "batch")

    def is_cut(self, path: str) -> bool:
        """Whether a device holds a part of this weight only."""
        return self.weights[path] != self.whole[path]

    def elements(self, *, of: str = "", but: tuple[str, ...] = ()) -> int:
        """Numbers in this device's weights whose path has ``of`` and none of ``but`` in it."""
        return sum(
            math.prod(shape)
            for path, shape in self.weights.items()
            if of in path and not any(name in path for name in but)
        )

    def stored(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Bytes that an array takes on this device."""
        return tiled_bytes(shape, itemsize) if self.tiled else math.prod(shape) * itemsize

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes that this device's weights take."""
        return sum(self.stored(shape, self.itemsize) for shape in self.weights.values())

    @cached_property
    def in_layers(self) -> int:
        """Numbers in this device's layers, but for those of experts."""
        return self.elements(of="layers.", but=tuple(f"experts.{name}." for name in EXPERT_KERNELS))

    @cached_property
    def in_experts(self) -> int:
        """Numbers in this device's part of all experts."""
        return sum(self.elements(of=f"experts.{name}.") for name in EXPERT_KERNELS)

    @cached_property
    def in_head(self) -> int:
        """Numbers in this device's part of the output head."""
        return self.elements(of="head.")

    @cached_property
    def sums_in_layers(self) -> int:
        """All-reduces of a pass in all layers: one after each kernel whose inputs are cut."""
        ends = ("output.kernel", "down.kernel")
        return sum(self.is_cut(path) for path in self.weights if path.endswith(ends))

    @cached_property
    def heads(self) -> int:
        """Query heads that this device computes in a layer."""
        path = "layers.0.output.kernel"
        return self.weights[path][0] // self.config.head_dim

    def cache(self, batch: int, slots: int, scratch: int) -> KVCache:
        """Shapes of this device's part of a cache, as ``DecoderLM.init_cache`` allocates it."""
        return _cache(self, batch, slots, scratch)

    @lru_cache(maxsize=64)  # noqa: B019 - shards are few, and are remembered anyway
    def cache_shapes(self, slots: int, scratch: int) -> Counter[tuple[int, int]]:
        """How many layers there are of each kind: slots, and numbers in a slot of one row."""
        layers = self.cache(self.num_data, slots, scratch).layers
        return Counter(
            (keys.shape[1], math.prod(keys.shape[2:]) + math.prod(values.shape[2:]))
            for keys, values in layers
        )

    def cache_bytes(self, batch: int, slots: int, scratch: int) -> int:
        """Bytes that this device's part of a cache takes."""
        rows = batch // self.num_data
        one = self.cache(self.num_data, slots, scratch)  # of one row a device; rows are alike
        return sum(
            self.stored((rows, *x.shape[1:]), x.dtype.itemsize) for x in jax.tree.leaves(one)
        )


@lru_cache(maxsize=64)
def shard_of(
    config: Config, mesh: tuple[int, int], dtype: str, placement: str, tiled: bool = False
) -> Shard:
    """Lay a model over (data, model) devices, cut or replicated, and take one device's part."""
    layout = Parts(stand_in_mesh(*mesh, "tpu" if tiled else "none"), PLACEMENTS[placement])
    config = sharded(config, layout)
    table = parameters(config)
    parts = {
        path: tuple(weight_sharding(config, layout, one).shard_shape(one.shape))
        for path, one in table.items()
    }
    whole = {path: one.shape for path, one in table.items()}
    return Shard(config, layout, dtype, parts, whole, tiled)


@lru_cache(maxsize=256)
def _cache(shard: Shard, batch: int, slots: int, scratch: int) -> KVCache:
    # Layers of a kind are alike: one of each is asked for, since eighty take their time.
    config, kinds = shard.config, tuple(dict.fromkeys(shard.config.layers))
    leaves: dict[str, Any] = {
        path: jax.ShapeDtypeStruct(shape, jnp.dtype(shard.dtype))
        for path, shape in shard.whole.items()
    }
    model = DecoderLM(pack(leaves), dataclasses.replace(config, layers=kinds))
    cache = jax.eval_shape(lambda: model.init_cache(batch, slots, scratch=scratch))
    cache = cache.laid_out(shard.layout, config.num_cache_heads)
    found = dict(zip(kinds, cache.layers, strict=True))
    counts: Any = cache.experts
    if counts is not None:
        counts = jax.ShapeDtypeStruct((counts.shape[0], config.num_layers), counts.dtype)
    return KVCache(tuple(found[kind] for kind in config.layers), counts)
