"""Mixtral: eight experts to a layer, of which every token takes two (Jiang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, Experts, LayerKind
from specjax.models.published import LAYER, head_size, read_config, table_of
from specjax.models.rope import Rope
from specjax.models.table import Table

ARCHITECTURES = ("MixtralForCausalLM",)

_EXPERT = LAYER + "block_sparse_moe.experts.+."


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    defaults = {
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    hf = {**defaults, **hf}
    kind = LayerKind(Rope.from_hf(hf, head_size(hf)), hf.get("sliding_window"), sparse=True)
    experts = Experts(hf["num_local_experts"], hf["num_experts_per_tok"], hf["intermediate_size"])
    return read_config(hf, layers=(kind,) * hf["num_hidden_layers"], experts=experts)


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names = {
        "layers.*.experts.router.kernel": LAYER + "block_sparse_moe.gate.weight",
        "layers.*.experts.gate.channels": _EXPERT + "w1.weight",
        "layers.*.experts.down.kernel": _EXPERT + "w2.weight",
        "layers.*.experts.up.channels": _EXPERT + "w3.weight",
    }
    return table_of(config, names)
