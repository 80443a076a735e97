"""Model families, all on one decoder: ``describe(config.json)`` finds the right one."""

from __future__ import annotations

if __name__ == "models":
    raise ImportError("import specjax.models: this folder is that package")

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from specjax.models import (
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
)
from specjax.models.config import Config, Experts, LayerKind
from specjax.models.decoder import DecoderLM
from specjax.models.eight_bits import quantize
from specjax.models.initial import random_weights
from specjax.models.kv_copies import sharded
from specjax.models.layers import Weights
from specjax.models.table import Checkpoint, Table
from specjax.models.weights import assemble, shard, weight_sharding

__all__ = [
    "Checkpoint",
    "Config",
    "DecoderLM",
    "Experts",
    "LayerKind",
    "Table",
    "Weights",
    "assemble",
    "describe",
    "family",
    "quantize",
    "random_weights",
    "shard",
    "sharded",
    "weight_sharding",
]

FAMILIES = (
    *(llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, phi3, olmo2, smollm3),
    *(gpt2, gpt_neox, mixtral, qwen3_moe),
)
_FAMILY_OF = {name: module for module in FAMILIES for name in module.ARCHITECTURES}


def family(architecture: str) -> ModuleType:
    """The module with ``config_from_hf`` and ``weight_table`` for a checkpoint's architecture.

    >>> family("LlamaForCausalLM").__name__
    'specjax.models.llama'

    Raises:
        ValueError: the architecture is not supported.
    """
    if architecture not in _FAMILY_OF:
        raise ValueError(
            f"architecture {architecture!r} is not supported; supported are {', '.join(_FAMILY_OF)}"
        )
    return _FAMILY_OF[architecture]


def describe(hf: Mapping[str, Any]) -> Table:
    """The shape of the model that a config.json describes, and where its weights are kept.

    Raises:
        ValueError: the architecture is not supported, or the configuration asks for something
            that the decoder does not do.
    """
    module = family((hf.get("architectures") or ["(none named)"])[0])
    try:
        config = module.config_from_hf(hf)
    except KeyError as missing:
        raise ValueError(f"the model's configuration lacks {missing}") from None
    return module.weight_table(dataclasses.replace(config, published=dict(hf)))
