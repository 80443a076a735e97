"""The one decoder: a static Config, a pytree of weights, and ``extend`` over a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import experts, product
from specjax.cache import KVCache
from specjax.models.config import Config
from specjax.models.layers import ExpertWeights, Linear, Norm, Weights, split_heads
from specjax.models.rope import Rope, rotate, rotation
from specjax.nn import attention, layer_norm, rms_norm, soft_cap, wide
from specjax.protocols import Tokenizer
from specjax.sharding import Layout

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}

Turns = dict[Rope, tuple[Float[Array, "B T R"], Float[Array, "B T R"]]]
"""Cosine and sine of the positions of a pass, for each rotation that its layers use."""


@struct.dataclass
class Pass:
    """What every layer of one pass is told."""

    start: Int[Array, " B"]
    count: Int[Array, " B"]
    mask: Bool[Array, "B T R"] | None
    turns: Turns


@struct.dataclass
class DecoderLM:
    """A decoder-only language model, a ``specjax.protocols.Target``: its leaves are weights.

    ``layout`` is how they lie on several devices, and how caches and states are to.
    """

    weights: Weights
    config: Config = struct.field(pytree_node=False)
    tokenizer: Tokenizer | None = struct.field(pytree_node=False, default=None)
    layout: Layout | None = struct.field(pytree_node=False, default=None)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.config.max_length

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def dtype(self) -> jnp.dtype:
        """The type of hidden states and caches."""
        return self.weights.norm.scale.dtype

    @property
    def experts_per_position(self) -> int | None:
        """Experts that one position reads, summed over layers; None for dense models."""
        config = self.config
        if config.experts is None:
            return None
        return config.experts.num_chosen * sum(kind.sparse for kind in config.layers)

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> KVCache:
        """Allocate a cache of ``capacity`` slots a row, in the weights' dtype.

        With ``scratch`` layers that see a window keep a ring, as ``KVCache.zeros`` says.
        """
        config = self.config
        cache = KVCache.zeros(
            batch,
            capacity,
            config.num_cache_heads,
            config.head_dim,
            self.dtype,
            windows=[kind.window for kind in config.layers],
            scratch=scratch,
            counts_experts=config.experts is not None,
        )
        return self._laid_out(cache)

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
            ValueError: ``layers`` does not ascend within the model, ``capture`` names a layer
                that is not run, or the pass is wider than the cache's scratch.
        """
        layers = _chosen(layers, capture, self.num_layers)
        if positions is None:
            positions = start[:, None] + jnp.arange(inputs.shape[1], dtype=start.dtype)
        ropes = {kind.rope for kind in (self.config.layers[i] for i in layers) if kind.rope}
        this = Pass(start, count, mask, {rope: rotation(rope, positions) for rope in ropes})
        hidden = inputs
        if jnp.issubdtype(inputs.dtype, jnp.integer):
            hidden = self.embed(inputs)
            if self.weights.positions is not None:
                hidden = hidden + self.weights.positions[positions]
        outputs = {}
        for index in layers:
            hidden, cache = self._layer(index, hidden, cache, this)
            outputs[index] = hidden = self._whole(hidden)
        return hidden, self._laid_out(cache), tuple(outputs[index] for index in capture)

    def _whole(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Sum the devices' parts of a layer's output up: each then has all channels of its rows."""
        return hidden if self.layout is None else self.layout.rows(hidden)

    def _laid_out(self, cache: KVCache) -> KVCache:
        """Cut a cache between rows and between key heads, as weights are."""
        if self.layout is None:
            return cache
        return cache.laid_out(self.layout, self.config.num_cache_heads)

    def _layer(self, index: int, hidden, cache: KVCache, this: Pass):
        """One block: attention, then a feed-forward network, each added to its input."""
        weights = self.weights.layers[index]
        x = self._normalise(weights.attention_norm, hidden)
        mixed, cache = self._attend(index, x, cache, this)
        mixed = self._normalise(weights.attention_post_norm, mixed)
        between = hidden if self.config.parallel else hidden + mixed
        x = self._normalise(weights.mlp_norm, between)
        fed, cache = self._feed_forward(index, x, cache, this)
        fed = self._normalise(weights.mlp_post_norm, fed)
        return (hidden + mixed if self.config.parallel else between) + fed, cache

    def _attend(self, index: int, x, cache: KVCache, this: Pass):
        """Attention: read and write the cache of layer ``index``."""
        config, weights, kind = self.config, self.weights.layers[index], self.config.layers[index]
        # Without the barrier the TPU's compiler folds the heads into the product, and on every
        # call lays all its kernels out anew.
        joined = jax.lax.optimization_barrier(weights.qkv(x))
        query, key, value = split_heads(config, joined)
        query = self._normalise_heads(weights.query_norm, query)
        key = self._normalise_heads(weights.key_norm, key)
        if kind.rope is not None:
            query, key = rotate(query, *this.turns[kind.rope]), rotate(key, *this.turns[kind.rope])
        cache = cache.write(index, (key, value), this.start, this.count)
        mixed = attention(
            query,
            *cache.layers[index],
            this.start,
            this.count,
            this.mask,
            scale=config.attention_scale,
            window=kind.window,
            cap=config.attention_cap,
        )
        return weights.output(mixed.reshape(*mixed.shape[:-2], -1)), cache

    def _feed_forward(self, index: int, x, cache: KVCache, this: Pass):
        """The feed-forward network, or the experts that a router chooses."""
        weights, activation = self.weights.layers[index], ACTIVATIONS[self.config.activation]
        if weights.experts is not None:
            return self._route(index, weights.experts, x, cache, this)
        assert weights.up is not None
        assert weights.down is not None
        inner = activation(weights.up(x) if weights.gate is None else weights.gate(x))
        return weights.down(inner if weights.gate is None else inner * weights.up(x)), cache

    def _route(self, index: int, weights: ExpertWeights, x, cache, this: Pass):
        chooses, (batch, length, _) = self.config.experts, x.shape
        assert chooses is not None
        valid = jnp.arange(length, dtype=jnp.int32) < this.count[:, None]
        flat, used = x.reshape(batch * length, -1), valid.reshape(-1)
        chosen, share = experts.route(
            flat,
            weights.router.kernel,
            chooses.num_chosen,
            normalise=chooses.normalised,
            valid=used,
        )
        stacks = weights.gate.stack, weights.up.stack, weights.down.stack
        mix = experts.mix if self.layout is None else partial(experts.mix_on, self.layout, batch)
        activation = ACTIVATIONS[self.config.activation]
        mixed = mix(flat, chosen, share, used, *stacks, activation=activation)
        num = experts.num_read(chosen.reshape(batch, length, -1), valid, chooses.num)
        return mixed.reshape(x.shape), cache.count_experts(index, num)

    def _normalise(self, norm: Norm | None, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        if norm is None:
            return x
        if norm.bias is not None:
            return layer_norm(x, norm.scale, norm.bias, self.config.norm_eps)
        return rms_norm(x, norm.scale, self.config.norm_eps, self.config.norm_offset)

    def _normalise_heads(self, norm: Norm | None, x: Float[Array, "B T H D"]):
        """Normalise the channels of each head, or of all heads together."""
        if self.config.head_norm == "all":
            return self._normalise(norm, x.reshape(*x.shape[:2], -1)).reshape(x.shape)
        return self._normalise(norm, x)

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look the tokens up, as the first layer sees them."""
        if self.weights.embedding is None:
            looked_up = self.weights.head.channels(tokens).astype(self.dtype)
        else:
            looked_up = self.weights.embedding[tokens]
        if self.config.embedding_scale == 1.0:
            return looked_up
        return looked_up * jnp.asarray(self.config.embedding_scale, looked_up.dtype)

    def unembed(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Final norm and output head: hidden states to logits in float32 or wider."""
        x = self._normalise(self.weights.norm, hidden)
        head, dtype = self.weights.head, wide(x.dtype)
        if isinstance(head, Linear) and self.layout is None:
            logits = product.wide_matmul(x, head.kernel, dtype=dtype)
        else:
            logits = head(x, dtype)
        return logits if self.config.logit_cap is None else soft_cap(logits, self.config.logit_cap)


def _chosen(layers: Sequence[int] | None, capture: Sequence[int], total: int) -> tuple[int, ...]:
    """Check which layers to run and to capture."""
    layers = tuple(range(total) if layers is None else layers)
    if list(layers) != sorted(set(layers)) or not set(layers) <= set(range(total)):
        raise ValueError(f"layers must ascend within 0..{total - 1}, got {layers}")
    for index in capture:
        if index not in layers:
            raise ValueError(f"capture names layer {index}, which is not run; layers are {layers}")
    return layers
