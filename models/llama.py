"""The llama family: Llama 1 to 3, SmolLM2 and others of their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.decoder import Config
from specjax.models.rope import Rope
from specjax.models.weights import Table

ARCHITECTURES = ("LlamaForCausalLM",)

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_LAYER = "model.layers.*."
_NAMES = {
    "norm": "model.norm.weight",
    "layers.*.attention_norm": _LAYER + "input_layernorm.weight",
    "layers.*.mlp_norm": _LAYER + "post_attention_layernorm.weight",
}
_LINEARS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate": ("mlp.gate_proj",),
    "up": ("mlp.up_proj",),
    "down": ("mlp.down_proj",),
}


def config_from_hf(config: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json; what is absent has the default of ``LlamaConfig``.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    for name in _REQUIRED:
        if config.get(name) is None:
            raise ValueError(f"the model's configuration lacks {name!r}")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ValueError(f"hidden_act {activation!r} is not supported; supported is 'silu'")
    biased = bool(config.get("attention_bias"))
    rope = Rope.from_hf(config, head_dim)
    longest = config.get("max_position_embeddings", 2048)
    return Config(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        rope=rope,
        # Dynamic scaling keeps the model's own length in this field, the others the stretched one.
        max_length=int(longest * rope.factor) if rope.scaling == "dynamic" else longest,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings")),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=bool(config.get("mlp_bias")),
    )


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    names = {path: (name,) for path, name in _NAMES.items()}
    for path, tensors in _LINEARS.items():
        for part, suffix in (("kernel", ".weight"), ("bias", ".bias")):
            names[f"layers.*.{path}.{part}"] = tuple(_LAYER + x + suffix for x in tensors)
    embedding, head = ("model.embed_tokens.weight",), ("lm_head.weight",)
    names |= {"embedding": embedding, "head.kernel": embedding if config.tied else head}
    ignored = (r".*rotary_emb\.inv_freq", *((r"lm_head\.weight",) if config.tied else ()))
    return Table(config, names, ignored)
