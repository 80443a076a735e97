"""The weights of a decoder: what there is, of which shape, and how it is arranged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Int8

from specjax import int8, product
from specjax.models.config import Config, Experts, LayerKind


@struct.dataclass
class Norm:
    """Scale, and the bias of a layer norm."""

    scale: Float[Array, " D"]
    bias: Float[Array, " D"] | None = None


@struct.dataclass
class Linear:
    """x @ kernel + bias."""

    kernel: Float[Array, "*E I O"]
    bias: Float[Array, " O"] | None = None

    def __call__(self, x: Float[Array, "*B I"], dtype=None) -> Float[Array, "*B O"]:
        """Apply it; the result is of ``dtype``, by default that of x."""
        y = product.matmul(x, self.kernel, dtype=dtype)
        return y if self.bias is None else y + self.bias

    def channels(self, index: Int[Array, "*B"]) -> Float[Array, "*B I"]:
        """The weights of some output channels: of a head, the embeddings of some tokens."""
        return jnp.moveaxis(self.kernel[:, index], 0, -1)

    @property
    def stack(self) -> Any:
        """The kernels of all experts, as ``specjax.experts`` takes them."""
        return self.kernel


@struct.dataclass
class Int8Linear:
    """A linear layer in eight bits, [out, in], with a scale for each output channel."""

    weight: Int8[Array, "*E O I"]
    scale: Float[Array, "*E O"]
    bias: Float[Array, " O"] | None = None

    def __call__(self, x: Float[Array, "*B I"], dtype=None) -> Float[Array, "*B O"]:
        """Apply it; the result is of ``dtype``, by default that of x."""
        y = int8.matmul(x, self.weight, self.scale, dtype=dtype)
        return y if self.bias is None else y + self.bias

    def channels(self, index: Int[Array, "*B"]) -> Float[Array, "*B I"]:
        """The weights of some output channels, in float32."""
        return self.weight[index].astype(self.scale.dtype) * self.scale[index][..., None]

    @property
    def stack(self) -> Any:
        """The weights of all experts and their scales."""
        return self.weight, self.scale


AnyLinear = Linear | Int8Linear


@struct.dataclass
class ExpertInputs:
    """What every expert multiplies its input by, [out, in].

    Cut between output channels, a device's part of an expert may have fewer of them than a TPU's
    128 lanes: as the last axis they would be padded, or laid out anew on every call.
    """

    channels: Float[Array, "E O I"]

    @property
    def stack(self) -> Any:
        """The kernels of all experts, as ``specjax.experts`` takes them."""
        return self.channels


@struct.dataclass
class ExpertWeights:
    """A router, and every expert's kernels along their first axis."""

    router: Linear
    gate: ExpertInputs | Int8Linear
    up: ExpertInputs | Int8Linear
    down: AnyLinear


@struct.dataclass
class Layer:
    """Weights of one block: attention, then a feed-forward network or experts.

    ``qkv`` gives, for each key head in turn, its query heads, then the key, then the value: one
    product is faster than three, and cutting between key heads shards it.
    """

    qkv: AnyLinear
    output: AnyLinear
    up: AnyLinear | None = None
    down: AnyLinear | None = None
    gate: AnyLinear | None = None
    experts: ExpertWeights | None = None
    attention_norm: Norm | None = None
    attention_post_norm: Norm | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    mlp_norm: Norm | None = None
    mlp_post_norm: Norm | None = None


@struct.dataclass
class Weights:
    """All weights. A tied model keeps the head alone; its columns are the embedding."""

    embedding: Float[Array, "V D"] | None
    layers: tuple[Layer, ...]
    norm: Norm
    head: AnyLinear
    positions: Float[Array, "P D"] | None = None


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Shape and logical axes of one weight; an axis without a name is never cut."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


def parameters(config: Config) -> dict[str, Parameter]:
    """Every weight by its path: the one place that declares them.

    Paths read like attributes (``layers.3.qkv.kernel``). Kernels are [in, out], ``channels`` and
    embeddings [out, in]; experts are a leading axis.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    table = _norm(config, "norm") | _linear("head", (hidden, None), (vocab, "vocab"), False)
    if not config.tied:
        table["embedding"] = Parameter((vocab, hidden), ("vocab", None))
    if config.num_positions is not None:
        table["positions"] = Parameter((config.num_positions, hidden), (None, None))
    for index, kind in enumerate(config.layers):
        layer = _attention(config) | _feed_forward(config, kind)
        table |= {f"layers.{index}.{path}": parameter for path, parameter in layer.items()}
    return table


def _attention(config: Config) -> dict[str, Parameter]:
    hidden, (query, key, _) = config.hidden_size, config.qkv_sizes
    table = _linear("qkv", (hidden, None), (sum(config.qkv_sizes), "kv_heads"), config.qkv_bias)
    table |= _linear("output", (query, "kv_heads"), (hidden, None), config.output_bias)
    if config.norm_before:
        table |= _norm(config, "attention_norm")
    if config.norm_after:
        table |= _norm(config, "attention_post_norm")
    if config.head_norm is not None:
        each = config.head_norm == "each"
        table["query_norm.scale"] = Parameter((config.head_dim if each else query,), (None,))
        table["key_norm.scale"] = Parameter((config.head_dim if each else key,), (None,))
    return table


def _feed_forward(config: Config, kind: LayerKind) -> dict[str, Parameter]:
    table = _norm(config, "mlp_norm") if config.norm_before else {}
    if config.norm_after:
        table |= _norm(config, "mlp_post_norm")
    hidden = (config.hidden_size, None)
    if kind.sparse and config.experts is not None:
        return table | _experts(config, config.experts)
    inner = (config.intermediate_size, "mlp")
    for name in ("gate", "up") if config.gated else ("up",):
        table |= _linear(name, hidden, inner, config.mlp_bias)
    return table | _linear("down", inner, hidden, config.mlp_bias)


def _experts(config: Config, experts: Experts) -> dict[str, Parameter]:
    hidden = config.hidden_size
    stack = Parameter((experts.num, experts.size, hidden), ("experts", "mlp", None))
    table = _linear("experts.router", (hidden, None), (experts.num, None), False)
    names = ("gate.channels", "up.channels", "down.kernel")
    return table | {f"experts.{name}": stack for name in names}


def _norm(config: Config, path: str) -> dict[str, Parameter]:
    one = Parameter((config.hidden_size,), (None,))
    scale = {f"{path}.scale": one}
    return scale if config.norm == "rms" else scale | {f"{path}.bias": one}


def _linear(path, inputs, outputs, biased: bool):
    """A kernel; inputs and outputs are (size, axis)."""
    (rows, row_axis), (columns, column_axis) = inputs, outputs
    table = {f"{path}.kernel": Parameter((rows, columns), (row_axis, column_axis))}
    return table | ({f"{path}.bias": Parameter((columns,), (column_axis,))} if biased else {})


def is_quantizable(path: str) -> bool:
    """Kernels are, but a router's: it is small, and decides."""
    return path.endswith((".kernel", ".channels")) and "router" not in path


def is_in_out(path: str) -> bool:
    """Whether a weight's last two axes are [in, out]; of all others they are [out, in]."""
    return path.endswith(".kernel")


def quantized(path: str, kernel: Parameter) -> dict[str, Parameter]:
    """What stands for a kernel in eight bits: the weight, [out, in], and its scale."""
    *rest, outputs, inputs = zip(kernel.shape, kernel.axes, strict=True)
    if is_in_out(path):
        outputs, inputs = inputs, outputs
    base = layer_of(path)
    named = {"weight": (*rest, outputs, inputs), "scale": (*rest, outputs)}
    return {
        base + name: Parameter(tuple(size for size, _ in sizes), tuple(axis for _, axis in sizes))
        for name, sizes in named.items()
    }


def layer_of(path: str) -> str:
    """The path of a weight's layer, with the dot.

    >>> layer_of("layers.3.qkv.kernel")
    'layers.3.qkv.'
    """
    return path[: path.rindex(".") + 1]


def pack(leaves: Mapping[str, Any]) -> Weights:
    """Arrange the weights, given by path, as the decoder wants them.

    Leaves may be anything: arrays, shapes, shardings.
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *outer, last = path.split(".")
        inner = tree
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = leaf
    layers = tree.get("layers", {})
    return Weights(
        embedding=tree.get("embedding"),
        layers=tuple(Layer(**_parts(layers[str(i)])) for i in range(len(layers))),
        norm=Norm(**tree["norm"]),
        head=_part(tree["head"]),
        positions=tree.get("positions"),
    )


def _parts(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _part(part) for name, part in tree.items()}


def _part(part: Mapping[str, Any]) -> Any:
    if "router" in part:
        return ExpertWeights(**_parts(part))
    if "weight" in part:
        return Int8Linear(**part)
    if "channels" in part:
        return ExpertInputs(**part)
    return Linear(**part) if "kernel" in part else Norm(**part)


def unpack(weights: Weights) -> dict[str, Any]:
    """The weights by path: what ``pack`` took."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(weights)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def split_heads(
    config: Config, x: Float[Array, "B T C"]
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T G D"], Float[Array, "B T G D"]]:
    """Query, key and value heads of ``qkv``'s output."""
    x = x.reshape(*x.shape[:-1], config.num_cache_heads, -1, config.head_dim)
    query = x[..., :-2, :].reshape(*x.shape[:2], config.num_heads, config.head_dim)
    return query, x[..., -2, :], x[..., -1, :]
