"""Gemma: scaled embeddings, and norms whose scale is stored as a distance from 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import attention_biases, read_config, table_of

ARCHITECTURES = ("GemmaForCausalLM",)

weight_table = table_of

DEFAULTS = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json; its activation is the tanh one, whatever the field says.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    return read_gemma({**DEFAULTS, **hf, "hidden_activation": "gelu_pytorch_tanh"})


def read_gemma(hf: Mapping[str, Any], **changes: Any) -> Config:
    """What all versions of Gemma share.

    Raises:
        ValueError: as ``config_from_hf``, or attention is to see the future.
    """
    if hf.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is not supported: the model must be causal")
    return read_config(
        hf,
        norm_offset=1.0,
        embedding_scale=hf["hidden_size"] ** 0.5,
        **attention_biases(hf),
        **changes,
    )
