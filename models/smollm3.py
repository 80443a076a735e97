"""SmolLM 3: every fourth layer knows positions by the causal mask alone (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, LayerKind
from specjax.models.published import attention_biases, head_size, layer_types, read_config, table_of
from specjax.models.rope import Rope

ARCHITECTURES = ("SmolLM3ForCausalLM",)

weight_table = table_of


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    defaults = {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    }
    hf = {**defaults, **hf}
    return read_config(
        hf,
        layers=_layers(hf),
        **attention_biases(hf),
        mlp_bias=bool(hf.get("mlp_bias")),
    )


def _layers(hf: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    """Despite its name, ``no_rope_layers`` holds 1 for the layers that do rotate."""
    num, every = hf["num_hidden_layers"], hf.get("no_rope_layer_interval", 4)
    rotates = hf.get("no_rope_layers") or [(index + 1) % every != 0 for index in range(num)]
    if len(rotates) != num:
        raise ValueError(f"no_rope_layers must have {num} entries, got {len(rotates)}")
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    local = layer_types(hf, lambda index: not rotates[index])
    rope = Rope.from_hf(hf, head_size(hf))
    return tuple(
        LayerKind(rope if turns else None, window if near else None)
        for turns, near in zip(rotates, local, strict=True)
    )
