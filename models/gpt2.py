"""GPT-2: learned positions, layer norms with biases, and kernels stored [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, LayerKind
from specjax.models.published import LINEAR, NORM, activation, named, read_config
from specjax.models.table import Name, Table

ARCHITECTURES = ("GPT2LMHeadModel",)

_LAYER = "transformer.h.*."
_NORMS = {
    "norm": "transformer.ln_f",
    "layers.*.attention_norm": _LAYER + "ln_1",
    "layers.*.mlp_norm": _LAYER + "ln_2",
}
_LINEARS = {
    "layers.*.output": _LAYER + "attn.c_proj",
    "layers.*.up": _LAYER + "mlp.c_fc",
    "layers.*.down": _LAYER + "mlp.c_proj",
}
_FIELDS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if hf.get(name):
            raise ValueError(f"{name} is not supported; supported is false")
    named = {ours: hf[theirs] for ours, theirs in _FIELDS.items() if theirs in hf}
    inner = hf.get("n_inner") or 4 * named.get("hidden_size", 0)
    named |= {"vocab_size": hf.get("vocab_size"), "intermediate_size": inner}
    named["tie_word_embeddings"] = hf.get("tie_word_embeddings", True)
    return read_config(
        named,
        layers=(LayerKind(),) * named.get("num_hidden_layers", 0),
        norm="layer",
        norm_eps=hf.get("layer_norm_epsilon", 1e-5),
        activation=activation({"activation_function": "gelu_new", **hf}, ("activation_function",)),
        gated=False,
        num_positions=named.get("max_position_embeddings"),
        attention_scale=None if hf.get("scale_attn_weights", True) else 1.0,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names: dict[str, Name] = {
        "embedding": "transformer.wte.weight",
        "head.kernel": "transformer.wte.weight" if config.tied else "lm_head.weight",
        "positions": "transformer.wpe.weight",
    }
    names |= named(_NORMS, NORM) | named(_LINEARS, LINEAR)
    for leaf, ending in LINEAR.items():
        fused = _LAYER + "attn.c_attn" + ending
        names[f"layers.*.qkv.{leaf}"] = (fused, fused, fused)
    ignored = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)
    return Table(
        config,
        names,
        in_out=r".*\.(c_attn|c_proj|c_fc)\.weight",
        ignored=(*ignored, r"lm_head\.weight") if config.tied else ignored,
    )
