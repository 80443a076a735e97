"""From a checkpoint's tensors to the decoder's weights: each is read once, or tied on purpose."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding
from jaxtyping import Array

from specjax.models import eight_bits, layers
from specjax.models.config import Config
from specjax.models.kv_copies import sharded, with_copies
from specjax.models.layers import Parameter, Weights, pack, parameters
from specjax.models.table import Checkpoint, Index, Reader, Table, bounds
from specjax.sharding import RULES, Layout, Rules

if TYPE_CHECKING:
    from specjax.models.decoder import DecoderLM

Shardings = Callable[[Parameter], Sharding]


def assemble(
    table: Table,
    checkpoint: Checkpoint,
    dtype=jnp.float32,
    *,
    shardings: Shardings | None = None,
    quantized: bool = False,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Weights:
    """Read all weights as ``dtype``, one at a time, after checking every name and shape.

    Args:
        table: where the checkpoint keeps each weight.
        checkpoint: the tensors.
        dtype: of the weights, cast slice by slice.
        shardings: how a weight is laid over devices; each is given only what it holds.
        quantized: keep the kernels in int8, each converted as soon as it is read.
        watch: wraps the paths of all weights as they are read, such as a progress bar.

    Raises:
        ValueError: a tensor is missing, unknown, or of another shape.
    """
    _check(table, checkpoint)
    leaves: dict[str, Array] = {}
    every = parameters(table.config)
    for path in watch(every):
        parameter = every[path]
        read = partial(_read, table, checkpoint, path, parameter, dtype)
        if quantized and layers.is_quantizable(path):
            reads = eight_bits.reads(path, parameter, read)
        else:
            reads = {path: (parameter, read)}
        for name, (one, read_one) in reads.items():
            layout = None if shardings is None else shardings(one)
            leaves[name] = place(read_one, one.shape, layout)
    return pack(leaves)


def _read(table, checkpoint, path, parameter, dtype, index: Index) -> np.ndarray:
    return table.read(checkpoint, path, parameter, index).astype(dtype)


def weight_sharding(config: Config, layout: Layout, parameter: Parameter) -> Sharding:
    """How a weight lies on a mesh; heads are cut between key heads only."""
    sizes = {name: n for name, n in zip(parameter.axes, parameter.shape, strict=True) if name}
    return layout.sharding(parameter.axes, sizes | {"kv_heads": config.num_cache_heads})


def shard(target: DecoderLM, mesh: Mesh, rules: Rules = RULES) -> DecoderLM:
    """Lay a model that is on one device over a mesh; ``load(..., mesh=)`` does it while reading.

    Raises:
        ValueError: the model lies on a mesh already, or the rules do not go with the mesh.
    """
    if target.layout is not None:
        raise ValueError("target: lies on a mesh already; load it on one device first")
    layout = Layout(mesh, rules)
    config = sharded(target.config, layout)
    declared = parameters(config)
    leaves: dict[str, Array] = {}
    for path, leaf in layers.unpack(target.weights).items():
        parameter = declared.get(path) or _in_eight_bits(path, declared)
        leaf = with_copies(config, path, leaf)
        leaves[path] = jax.device_put(leaf, weight_sharding(config, layout, parameter))
    return dataclasses.replace(target, weights=pack(leaves), config=config, layout=layout)


def _in_eight_bits(path: str, declared: Mapping[str, Parameter]) -> Parameter:
    """What a weight in eight bits, or its scale, is declared as."""
    base = layers.layer_of(path)
    kernel = next(base + name for name in ("kernel", "channels") if base + name in declared)
    return layers.quantized(kernel, declared[kernel])[path]


def place(read: Reader, shape: tuple[int, ...], layout: Sharding | None) -> Array:
    """Put an array on its devices, reading each slice once, however many devices hold it."""
    whole = (slice(None),) * len(shape)
    if layout is None:
        return jnp.asarray(read(whole))
    holders: dict[tuple, tuple[Index, list[Any]]] = {}
    for device, index in layout.addressable_devices_indices_map(shape).items():
        index = whole if index is None else index
        holders.setdefault(bounds(index, shape), (index, []))[1].append(device)
    shards = []
    for index, devices in holders.values():
        values = read(index)
        shards += [jax.device_put(values, device) for device in devices]
    return jax.make_array_from_single_device_arrays(shape, layout, shards)


def _check(table: Table, checkpoint: Checkpoint) -> None:
    """Compare the checkpoint's names and shapes with those that the configuration implies."""
    wanted, present = table.stored(), set(checkpoint.names())
    for name, shape in wanted.items():
        if name not in present:
            raise ValueError(f"tensor {name!r} of shape {shape} is missing from the checkpoint")
        if (found := tuple(checkpoint.shape(name))) != shape:
            raise ValueError(f"tensor {name!r} has shape {found}; the configuration wants {shape}")
    for name in sorted(present - set(wanted)):
        if not any(re.fullmatch(pattern, name) for pattern in table.ignored):
            raise ValueError(
                f"tensor {name!r} of shape {tuple(checkpoint.shape(name))} is in the checkpoint "
                "but has no place in the model; does config.json belong to it?"
            )
