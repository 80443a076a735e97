"""Qwen 3 with experts: 128 to a layer, of which every token takes eight (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, Experts, LayerKind
from specjax.models.published import LAYER, attention_biases, head_size, read_config, table_of
from specjax.models.rope import Rope
from specjax.models.table import Table

ARCHITECTURES = ("Qwen3MoeForCausalLM",)

_EXPERT = LAYER + "mlp.experts.+."


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json; some layers may be dense.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    defaults = {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
    hf = {**defaults, **hf}
    experts = Experts(
        hf.get("num_local_experts") or hf.get("num_experts", 128),  # the newer name first
        hf["num_experts_per_tok"],
        hf["moe_intermediate_size"],
        normalised=bool(hf.get("norm_topk_prob")),
    )
    return read_config(
        hf,
        layers=_layers(hf),
        experts=experts,
        head_norm="each",
        **attention_biases(hf),
    )


def _layers(hf: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    rope = Rope.from_hf(hf, head_size(hf))
    window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window") else None
    every, dense = hf.get("decoder_sparse_step", 1), set(hf.get("mlp_only_layers") or ())
    return tuple(
        LayerKind(rope, window, sparse=index not in dense and (index + 1) % every == 0)
        for index in range(hf["num_hidden_layers"])
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names = {
        "layers.*.experts.router.kernel": LAYER + "mlp.gate.weight",
        "layers.*.experts.gate.channels": _EXPERT + "gate_proj.weight",
        "layers.*.experts.up.channels": _EXPERT + "up_proj.weight",
        "layers.*.experts.down.kernel": _EXPERT + "down_proj.weight",
    }
    return table_of(config, names)
