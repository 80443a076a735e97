"""OLMo 2: norms after each part, none before; queries and keys normalised over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import LAYER, attention_biases, read_config, table_of
from specjax.models.table import Table

ARCHITECTURES = ("Olmo2ForCausalLM",)


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    return read_config(
        {"rms_norm_eps": 1e-5, **hf, "sliding_window": None},
        norm_before=False,
        norm_after=True,
        head_norm="all",
        **attention_biases(hf),
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names = {
        "layers.*.attention_post_norm.scale": LAYER + "post_attention_layernorm.weight",
        "layers.*.mlp_post_norm.scale": LAYER + "post_feedforward_layernorm.weight",
    }
    return table_of(config, names)
