"""The shape of a decoder: everything static that tells one family from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from specjax.models.rope import Rope


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """What differs from layer to layer: rotation, how far back it looks, whether it has experts.

    ``rope`` None leaves positions to the mask. ``window`` is how many positions are seen, the
    newest included; None sees all.
    """

    rope: Rope | None = None
    window: int | None = None
    sparse: bool = False


@dataclasses.dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which every token takes ``num_chosen``.

    ``size`` is the inner size of one. ``normalised`` makes the shares of the chosen sum to 1.
    """

    num: int
    num_chosen: int
    size: int
    normalised: bool = True


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a decoder. ``tied`` says that the embedding is the head's transpose.

    ``norm_before`` and ``norm_after`` say where a layer normalises: what its two parts read, what
    they return, or both. ``parallel`` feeds both parts the same input. ``num_positions`` is the
    number of learned position embeddings, None where positions are rotations. ``head_norm``
    normalises queries and keys: each head's channels, or all of them together. ``kv_copies`` is
    how often weights and cache hold each key head, so that more devices than key heads have one
    of their own. ``published`` is the config.json that this was read from; it is no part of what
    makes two shapes equal.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerKind, ...]
    max_length: int | None = None
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    norm_before: bool = True
    norm_after: bool = False
    parallel: bool = False
    head_norm: Literal["each", "all"] | None = None
    activation: str = "silu"
    gated: bool = True
    experts: Experts | None = None
    num_positions: int | None = None
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    kv_copies: int = 1
    published: Mapping[str, Any] | None = dataclasses.field(
        default=None, compare=False, repr=False, kw_only=True
    )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_cache_heads(self) -> int:
        """Key heads as weights and cache hold them: the model's own, each with its copies."""
        return self.num_kv_heads * self.kv_copies

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Channels of all queries, keys and values of a layer, copies included."""
        keys = self.num_cache_heads * self.head_dim
        return self.num_heads * self.head_dim, keys, keys
