"""Gemma 3, its text model: five local layers to a global one, each kind with its own rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models import gemma, gemma2
from specjax.models.config import Config
from specjax.models.published import head_size, layer_types, table_of
from specjax.models.rope import Rope
from specjax.models.table import Table

ARCHITECTURES = ("Gemma3ForCausalLM",)

# Checkpoints of the larger models leave out what equals transformers' defaults.
_DEFAULTS = gemma.DEFAULTS | {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    hf = {**_DEFAULTS, **hf}
    local, whole = _ropes(hf)
    is_local = layer_types(hf, lambda index: (index + 1) % hf["sliding_window_pattern"] != 0)
    kinds = [(local, hf["sliding_window"]) if one else (whole, None) for one in is_local]
    return gemma2.read_sandwich(hf, kinds, head_norm="each")


def _ropes(hf: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """The rotation of local layers, which is never stretched, and that of global ones."""
    given, size = hf.get("rope_parameters") or {}, head_size(hf)
    local = given.get("sliding_attention") or {"rope_theta": hf["rope_local_base_freq"]}
    whole = given.get("full_attention") or hf.get("rope_scaling") or {}
    whole = {"rope_theta": hf["rope_theta"], **whole}
    return (
        Rope.from_hf({**hf, "rope_parameters": local}, size),
        Rope.from_hf({**hf, "rope_parameters": whole}, size),
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    return table_of(config, gemma2.NAMES)
