"""The one decoder: a static Config, a pytree of weights, and ``extend`` over a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.cache import KVCache
from specjax.models.rope import Rope, rotate, rotation
from specjax.nn import attention, rms_norm, wide
from specjax.protocols import Tokenizer


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a decoder. ``tied`` says that the embedding is the head's transpose."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    max_length: int | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Channels of all queries, keys and values of a layer."""
        keys = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, keys, keys


@struct.dataclass
class Linear:
    """x @ kernel + bias."""

    kernel: Float[Array, "I O"]
    bias: Float[Array, " O"] | None = None

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        y = x @ self.kernel
        return y if self.bias is None else y + self.bias


@struct.dataclass
class Layer:
    """Weights of one block: attention, then a gated feed-forward network.

    ``qkv`` gives, for each key head in turn, its query heads, then the key, then the value: one
    product is faster than three, and cutting between key heads shards it.
    """

    attention_norm: Float[Array, " D"]
    qkv: Linear
    output: Linear
    mlp_norm: Float[Array, " D"]
    gate: Linear
    up: Linear
    down: Linear


@struct.dataclass
class Weights:
    """All weights. A tied model keeps the head alone; its columns are the embedding."""

    embedding: Float[Array, "V D"] | None
    layers: tuple[Layer, ...]
    norm: Float[Array, " D"]
    head: Linear


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its path: the one place that declares them.

    Paths read like attributes (``layers.3.qkv.kernel``). Kernels are [in, out].
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    linears = {
        "qkv": (hidden, sum(config.qkv_sizes), config.qkv_bias),
        "output": (config.qkv_sizes[0], hidden, config.output_bias),
        "gate": (hidden, inner, config.mlp_bias),
        "up": (hidden, inner, config.mlp_bias),
        "down": (inner, hidden, config.mlp_bias),
    }
    layer: dict[str, tuple[int, ...]] = {"attention_norm": (hidden,), "mlp_norm": (hidden,)}
    for name, (inputs, outputs, biased) in linears.items():
        layer[f"{name}.kernel"] = (inputs, outputs)
        if biased:
            layer[f"{name}.bias"] = (outputs,)
    table = {"norm": (hidden,), "head.kernel": (hidden, config.vocab_size)}
    if not config.tied:
        table["embedding"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        table |= {f"layers.{index}.{path}": shape for path, shape in layer.items()}
    return table


def pack(config: Config, leaves: Mapping[str, Array]) -> Weights:
    """Arrange the weights, given by path, as the decoder wants them."""

    def linear(path: str) -> Linear:
        return Linear(leaves[f"{path}.kernel"], leaves.get(f"{path}.bias"))

    def layer(path: str) -> Layer:
        names = ("qkv", "output", "gate", "up", "down")
        return Layer(
            attention_norm=leaves[f"{path}.attention_norm"],
            mlp_norm=leaves[f"{path}.mlp_norm"],
            **{name: linear(f"{path}.{name}") for name in names},
        )

    return Weights(
        embedding=leaves.get("embedding"),
        layers=tuple(layer(f"layers.{index}") for index in range(config.num_layers)),
        norm=leaves["norm"],
        head=linear("head"),
    )


def join_heads(config: Config, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Queries, keys and values [..., H * D], [..., G * D], [..., G * D] in the order of ``qkv``."""
    lead = parts[0].shape[:-1]
    grouped = [x.reshape(*lead, config.num_kv_heads, -1, config.head_dim) for x in parts]
    return np.concatenate(grouped, axis=-2).reshape(*lead, -1)


def split_heads(
    config: Config, x: Float[Array, "B T C"]
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T G D"], Float[Array, "B T G D"]]:
    """Query, key and value heads of ``qkv``'s output."""
    x = x.reshape(*x.shape[:-1], config.num_kv_heads, -1, config.head_dim)
    query = x[..., :-2, :].reshape(*x.shape[:2], config.num_heads, config.head_dim)
    return query, x[..., -2, :], x[..., -1, :]


def random_weights(config: Config, key: Key[Array, ""], dtype=jnp.float32) -> Weights:
    """Weights for tests: norms are 1, all else normal with deviation fan_in ** -0.5."""

    def leaf(index: int, path: str, shape: tuple[int, ...]) -> Array:
        if path.endswith("norm"):
            return jnp.ones(shape, dtype)
        noise = jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
        fan_in = shape[-1] if path == "embedding" else shape[0]
        return (noise * fan_in**-0.5).astype(dtype)

    table = shapes(config)
    return pack(config, {p: leaf(i, p, shape) for i, (p, shape) in enumerate(table.items())})


@struct.dataclass
class DecoderLM:
    """A decoder-only language model, a ``specjax.protocols.Target``: its leaves are weights."""

    weights: Weights
    config: Config = struct.field(pytree_node=False)
    tokenizer: Tokenizer | None = struct.field(pytree_node=False, default=None)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.config.max_length

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """Allocate a cache of ``capacity`` slots a row, in the weights' dtype."""
        config = self.config
        return KVCache.zeros(
            batch,
            capacity,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            self.weights.norm.dtype,
        )

    def extend(
        self,
        inputs: Int[Array, "B T"] | Float[Array, "B T D"],
        start: Int[Array, " B"],
        cache: KVCache,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, tuple[Float[Array, "B T D"], ...]]:
        """Run T positions of each row, as ``specjax.protocols.Target.extend`` says.

        Raises:
            ValueError: ``layers`` does not ascend within the model, or ``capture`` names a layer
                that is not run.
        """
        layers = _chosen(layers, capture, self.num_layers)
        if positions is None:
            positions = start[:, None] + jnp.arange(inputs.shape[1], dtype=start.dtype)
        turn = rotation(self.config.rope, positions)
        hidden = self.embed(inputs) if jnp.issubdtype(inputs.dtype, jnp.integer) else inputs
        outputs = {}
        for index in layers:
            hidden, cache = self._layer(index, hidden, cache, turn, start, count, mask)
            outputs[index] = hidden
        return hidden, cache, tuple(outputs[index] for index in capture)

    def _layer(self, index, hidden, cache, turn, start, count, mask):
        """One block: read and write the cache of layer ``index``."""
        weights, eps = self.weights.layers[index], self.config.norm_eps
        x = weights.qkv(rms_norm(hidden, weights.attention_norm, eps))
        query, key, value = split_heads(self.config, x)
        cache = cache.write(index, (rotate(key, *turn), value), start, count)
        keys, values = cache.layers[index]
        mixed = attention(rotate(query, *turn), keys, values, start, count, mask)
        hidden = hidden + weights.output(mixed.reshape(*mixed.shape[:-2], -1))
        x = rms_norm(hidden, weights.mlp_norm, eps)
        return hidden + weights.down(jax.nn.silu(weights.gate(x)) * weights.up(x)), cache

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look the tokens up, as the first layer sees them."""
        if self.weights.embedding is None:
            return jnp.moveaxis(self.weights.head.kernel[:, tokens], 0, -1)
        return self.weights.embedding[tokens]

    def unembed(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Final norm and output head: hidden states to logits in float32 or wider."""
        x = rms_norm(hidden, self.weights.norm, self.config.norm_eps)
        return jnp.matmul(x, self.weights.head.kernel, preferred_element_type=wide(x.dtype))


def _chosen(layers: Sequence[int] | None, capture: Sequence[int], total: int) -> tuple[int, ...]:
    """Check which layers to run and to capture."""
    layers = tuple(range(total) if layers is None else layers)
    if list(layers) != sorted(set(layers)) or not set(layers) <= set(range(total)):
        raise ValueError(f"layers must ascend within 0..{total - 1}, got {layers}")
    for index in capture:
        if index not in layers:
            raise ValueError(f"capture names layer {index}, which is not run; layers are {layers}")
    return layers
