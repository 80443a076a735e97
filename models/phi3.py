"""Phi-3 and 4: fused projections, and long contexts by two tables of divisors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import LAYER, read_config, table_of
from specjax.models.table import Part, Table

ARCHITECTURES = ("Phi3ForCausalLM",)

_QKV, _GATE_UP = LAYER + "self_attn.qkv_proj.weight", LAYER + "mlp.gate_up_proj.weight"


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    return read_config({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, **hf})


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names = {
        "layers.*.qkv.kernel": (_QKV, _QKV, _QKV),
        "layers.*.gate.kernel": Part(_GATE_UP, 0),
        "layers.*.up.kernel": Part(_GATE_UP, 1),
    }
    return table_of(config, names)
