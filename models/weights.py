"""From a checkpoint's tensors to the decoder's weights: each is read once, or tied on purpose."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from specjax.models.decoder import Config, Weights, join_heads, pack, shapes


class Checkpoint(Protocol):
    """Tensors by the names and in the orientation of the Hub: linear weights are [out, in]."""

    def names(self) -> Iterable[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def read(self, name: str) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Table:
    """Where a family keeps each weight.

    ``names`` maps the paths of ``decoder.shapes`` to tensors, ``*`` being the layer's index; three
    tensors are queries, keys and values, to be joined. ``ignored`` are patterns of tensors that
    checkpoints hold and the decoder has no use for.
    """

    config: Config
    names: Mapping[str, tuple[str, ...]]
    ignored: tuple[str, ...] = ()

    def sources(self, path: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The tensors of the weight at ``path``, with the shapes in which they are stored."""
        index = "".join(re.findall(r"\d+", path))
        names = [x.replace("*", index) for x in self.names[re.sub(r"\d+", "*", path)]]
        sizes = shape[-1:] if len(names) == 1 else self.config.qkv_sizes
        stored = [(*shape[:-1], size) for size in sizes]
        if path.endswith(".kernel"):
            stored = [x[::-1] for x in stored]
        return dict(zip(names, stored, strict=True))


def assemble(table: Table, checkpoint: Checkpoint, dtype=jnp.float32) -> Weights:
    """Read all weights as ``dtype``, one at a time, after checking every name and shape.

    Raises:
        ValueError: a tensor is missing, unknown, or of another shape.
    """
    sources = {path: table.sources(path, shape) for path, shape in shapes(table.config).items()}
    _check(table, checkpoint, sources)

    def read(path: str) -> Array:
        parts = [checkpoint.read(name) for name in sources[path]]
        if path.endswith(".kernel"):
            parts = [x.T for x in parts]
        whole = parts[0] if len(parts) == 1 else join_heads(table.config, parts)
        return jnp.asarray(whole, dtype)

    return pack(table.config, {path: read(path) for path in sources})


def _check(
    table: Table,
    checkpoint: Checkpoint,
    sources: Mapping[str, Mapping[str, tuple[int, ...]]],
) -> None:
    """Compare the checkpoint's names and shapes with those that the configuration implies."""
    wanted = {name: shape for tensors in sources.values() for name, shape in tensors.items()}
    present = set(checkpoint.names())
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
