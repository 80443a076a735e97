"""Qwen 2 and 2.5: queries, keys and values have biases (Yang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, LayerKind
from specjax.models.published import head_size, layer_types, read_config, table_of
from specjax.models.rope import Rope

ARCHITECTURES = ("Qwen2ForCausalLM",)

weight_table = table_of


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    hf = {"max_position_embeddings": 32_768, **hf}
    return read_config(hf, layers=windowed_layers(hf), qkv_bias=True)


def windowed_layers(hf: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    """Layers from ``max_window_layers`` on see a window, where the configuration asks for one."""
    rope = Rope.from_hf(hf, head_size(hf))
    window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window") else None
    first = hf.get("max_window_layers", 28)
    local = layer_types(hf, lambda index: window is not None and index >= first)
    return tuple(LayerKind(rope, window if one else None) for one in local)
