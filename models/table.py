"""Where a checkpoint keeps each weight: whole tensors, parts of fused ones, one tensor an expert.

The table serves both ways: slices of weights are read from tensors, and tensors written back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from specjax.models.config import Config
from specjax.models.layers import Parameter, Weights, is_in_out, layer_of, parameters, unpack

Index = tuple[slice, ...]
Reader = Callable[[Index], np.ndarray]
"""Gives a part of one weight."""


class Checkpoint(Protocol):
    """Tensors by the names and in the orientation of the Hub.

    ``index`` selects along the leading axes, so that no more is read than is wanted.
    """

    def names(self) -> Iterable[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def read(self, name: str, index: Index = ()) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Part:
    """Output channels of a tensor that holds several weights of one size, one after the other."""

    tensor: str
    index: int


Name = str | tuple[str, str, str] | Part
"""A tensor; those of queries, keys and values (one name thrice if they are one); or a part."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Output channels ``start..start + num - 1`` of a stored tensor."""

    tensor: str
    start: int
    num: int


@dataclasses.dataclass(frozen=True)
class Table:
    """Where a family keeps each weight.

    ``names`` maps the paths of ``layers.parameters`` to tensors, ``*`` being the layer's index
    and ``+`` the expert's. ``in_out`` is a pattern of those kernels that are stored [in, out] and
    not [out, in]; ``ignored`` are patterns of tensors that the decoder has no use for.
    """

    config: Config
    names: Mapping[str, Name]
    in_out: str | None = None
    ignored: tuple[str, ...] = ()

    def rows(self, path: str, num: int) -> list[Rows]:
        """Where the ``num`` output channels of the weight at ``path`` lie, in their order."""
        layer = "".join(re.findall(r"(?<=layers\.)\d+", path))
        match self.names[re.sub(r"(?<=layers\.)\d+", "*", path)]:
            case str(name):
                rows = [Rows(name, 0, num)]
            case Part(name, index):
                rows = [Rows(name, index * num, num)]
            case names:
                rows = _joined_heads(self.config, names)
        if path.endswith("key_norm.scale") and num > self.config.head_dim:
            rows = _copied_heads(self.config, rows)
        return [dataclasses.replace(r, tensor=r.tensor.replace("*", layer)) for r in rows]

    def stored(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor that the checkpoint of such a model holds."""
        shapes: dict[str, tuple[int, ...]] = {}
        every = parameters(self.config)
        for name, places in self._places().items():
            size = max(rows.start + rows.num for *_, rows in places)
            path = places[0][0]
            matrix = every[path].shape[-2:]
            inputs = matrix[:1] if is_in_out(path) else matrix[1:]
            shapes[name] = (*inputs, size) if self._is_in_out(name) else (size, *inputs)
        return shapes

    def read(
        self, checkpoint: Checkpoint, path: str, parameter: Parameter, index: Index
    ) -> np.ndarray:
        """Read a slice of the weight at ``path``, and nothing but that."""
        ranges = [range(*s.indices(n)) for s, n in zip(index, parameter.shape, strict=True)]
        rows = self.rows(path, _channels(path, parameter))
        if len(ranges) == 3:
            named = ((_of_expert(rows, expert), ranges[1:]) for expert in ranges[0])
            return np.stack([self._matrix(checkpoint, path, r, rest) for r, rest in named])
        return self._matrix(checkpoint, path, rows, ranges)

    def _matrix(
        self, checkpoint: Checkpoint, path: str, rows: Iterable[Rows], ranges: list[range]
    ) -> np.ndarray:
        kernel = is_in_out(path)
        inputs = [slice(r.start, r.stop) for r in (ranges[:-1] if kernel else ranges[1:])]
        outputs, parts, first = ranges[-1] if kernel else ranges[0], [], 0
        for one in rows:
            low = max(outputs.start - first, 0)
            high = min(outputs.stop - first, one.num)
            first += one.num
            if low < high:
                channels = slice(one.start + low, one.start + high)
                in_out = self._is_in_out(one.tensor)
                part = checkpoint.read(
                    one.tensor, (*inputs, channels) if in_out else (channels, *inputs)
                )
                parts.append(part.T if kernel and not in_out else part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1 if kernel else 0)

    def write(self, weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor of a checkpoint, one at a time: the inverse of ``read``."""
        leaves, places = unpack(weights), self._places()
        for name, shape in self.stored().items():
            tensor = None
            for path, expert, first, rows in places[name]:
                leaf, kernel = _values(leaves, path, expert), is_in_out(path)
                held = slice(first, first + rows.num)
                part = leaf[..., held] if kernel else leaf[held]
                if tensor is None:
                    tensor = np.empty(shape, part.dtype)
                channels = slice(rows.start, rows.start + rows.num)
                if self._is_in_out(name):
                    tensor[..., channels] = part
                else:
                    tensor[channels] = part.T if kernel else part
            assert tensor is not None
            yield name, tensor

    def _places(self) -> dict[str, list[tuple[str, int | None, int, Rows]]]:
        """For each tensor the weights in it: path, expert, first output channel, rows."""
        places: dict[str, list[tuple[str, int | None, int, Rows]]] = {}
        for path, parameter in parameters(self.config).items():
            rows = self.rows(path, _channels(path, parameter))
            experts = range(parameter.shape[0]) if len(parameter.shape) == 3 else (None,)
            for expert in experts:
                first = 0
                for one in _of_expert(rows, expert):
                    places.setdefault(one.tensor, []).append((path, expert, first, one))
                    first += one.num
        return places

    def _is_in_out(self, name: str) -> bool:
        return self.in_out is not None and re.fullmatch(self.in_out, name) is not None


def _channels(path: str, parameter: Parameter) -> int:
    """Output channels of a weight, whatever its orientation."""
    matrix = parameter.shape[-2:]
    return matrix[-1] if is_in_out(path) else matrix[0]


def _of_expert(rows: Iterable[Rows], expert: int | None) -> list[Rows]:
    return [dataclasses.replace(r, tensor=r.tensor.replace("+", str(expert))) for r in rows]


def _joined_heads(config: Config, names: tuple[str, str, str]) -> list[Rows]:
    """For each key head its query heads, its key and its value, as ``Layer.qkv`` has them.

    Copies of a key head share its query heads among them.
    """
    query, keys, values = dataclasses.replace(config, kv_copies=1).qkv_sizes
    starts, taken = [], dict.fromkeys(names, 0)
    for name, size in zip(names, (query, keys, values), strict=True):
        starts.append(taken[name])
        taken[name] += size
    shared = config.num_heads // config.num_cache_heads
    sizes = [shared * config.head_dim, config.head_dim, config.head_dim]
    return [
        Rows(name, start + index * size, size)
        for head in range(config.num_cache_heads)
        for name, start, size, index in zip(
            names, starts, sizes, (head, *[head // config.kv_copies] * 2), strict=True
        )
    ]


def _copied_heads(config: Config, rows: list[Rows]) -> list[Rows]:
    """What a tensor holds for all key heads, once for each copy of a head."""
    (whole,), size = rows, config.head_dim
    heads = range(config.num_cache_heads)
    return [Rows(whole.tensor, head // config.kv_copies * size, size) for head in heads]


def _values(leaves: Mapping[str, Any], path: str, expert: int | None) -> np.ndarray:
    """A weight in floating point, on the host, of one expert if there are several."""
    one = slice(None) if expert is None else expert
    if path in leaves:
        return np.asarray(leaves[path])[one]
    weight, scale = (np.asarray(leaves[layer_of(path) + name])[one] for name in ("weight", "scale"))
    values = weight.astype(scale.dtype) * scale[:, None]
    return values.T if is_in_out(path) else values


def bounds(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """An index in a form that is equal where it selects the same."""
    return tuple(s.indices(n) for s, n in zip(index, shape, strict=True))
