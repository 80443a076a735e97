"""The llama family: Llama 1 to 3, SmolLM2 and others of their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import attention_biases, read_config, table_of

ARCHITECTURES = ("LlamaForCausalLM",)

weight_table = table_of


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json; what is absent has the default of ``LlamaConfig``.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    return read_config(
        {**hf, "sliding_window": None},
        **attention_biases(hf),
        mlp_bias=bool(hf.get("mlp_bias")),
    )
