"""Mistral: a llama whose layers see a sliding window (Jiang et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import read_config, table_of

ARCHITECTURES = ("MistralForCausalLM",)

weight_table = table_of


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json; ``sliding_window`` null means that all is seen.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    defaults = {
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
    }
    return read_config({**defaults, **hf})
