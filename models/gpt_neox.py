"""GPT-NeoX and Pythia: both parts of a layer read the same input; a quarter of a head rotates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config
from specjax.models.published import LINEAR, NORM, attention_biases, named, read_config
from specjax.models.table import Name, Table

ARCHITECTURES = ("GPTNeoXForCausalLM",)

_LAYER = "gpt_neox.layers.*."
_NORMS = {
    "norm": "gpt_neox.final_layer_norm",
    "layers.*.attention_norm": _LAYER + "input_layernorm",
    "layers.*.mlp_norm": _LAYER + "post_attention_layernorm",
}
_LINEARS = {
    # Stored head by head, each with its query, its key and its value: as ``Layer.qkv`` has them.
    "layers.*.qkv": _LAYER + "attention.query_key_value",
    "layers.*.output": _LAYER + "attention.dense",
    "layers.*.up": _LAYER + "mlp.dense_h_to_4h",
    "layers.*.down": _LAYER + "mlp.dense_4h_to_h",
}


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    older = {
        "rope_theta": hf.get("rotary_emb_base"),
        "partial_rotary_factor": hf.get("rotary_pct", 0.25),
        "hidden_act": "gelu",
    }
    return read_config(
        {**older, **hf, "sliding_window": None, "num_key_value_heads": None},
        norm="layer",
        norm_eps=hf.get("layer_norm_eps", 1e-5),
        parallel=bool(hf.get("use_parallel_residual", True)),
        gated=False,
        **attention_biases(hf, default=True),
        mlp_bias=True,
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    embedding = "gpt_neox.embed_in.weight"
    names: dict[str, Name] = {
        "embedding": embedding,
        "head.kernel": embedding if config.tied else "embed_out.weight",
    }
    names |= named(_NORMS, NORM) | named(_LINEARS, LINEAR)
    buffers = r".*\.attention\.(masked_)?bias", r".*rotary_emb\.inv_freq"
    return Table(
        config, names, ignored=(*buffers, r"embed_out\.weight") if config.tied else buffers
    )
