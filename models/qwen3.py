"""Qwen 3: queries and keys are normalised, head by head (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import attention_biases, read_config, table_of
from specjax.models.qwen2 import windowed_layers

ARCHITECTURES = ("Qwen3ForCausalLM",)

weight_table = table_of


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    hf = {"max_position_embeddings": 32_768, "head_dim": 128, **hf}
    return read_config(
        hf,
        layers=windowed_layers(hf),
        head_norm="each",
        **attention_biases(hf),
    )
