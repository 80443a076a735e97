"""What the config.json files and the tensor names of most families have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, LayerKind
from specjax.models.rope import Rope
from specjax.models.table import Name, Table

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

LAYER = "model.layers.*."
"""How the tensors of a layer begin in most checkpoints."""

LINEAR = {"kernel": ".weight", "bias": ".bias"}
NORM = {"scale": ".weight", "bias": ".bias"}
"""Leaves of a linear layer and of a norm, and how their tensors end."""


def named(modules: Mapping[str, str], leaves: Mapping[str, str]) -> dict[str, Name]:
    """The tensors of modules, by the paths of their leaves.

    >>> named({"norm": "ln_f"}, NORM)
    {'norm.scale': 'ln_f.weight', 'norm.bias': 'ln_f.bias'}
    """
    return {
        f"{path}.{leaf}": module + ending
        for path, module in modules.items()
        for leaf, ending in leaves.items()
    }


def _qkv(ending: str) -> Name:
    query, key, value = (f"{LAYER}self_attn.{x}_proj{ending}" for x in "qkv")
    return query, key, value


_NAMES: dict[str, Name] = {
    "norm.scale": "model.norm.weight",
    "embedding": "model.embed_tokens.weight",
    "head.kernel": "lm_head.weight",
    "layers.*.attention_norm.scale": LAYER + "input_layernorm.weight",
    "layers.*.mlp_norm.scale": LAYER + "post_attention_layernorm.weight",
    "layers.*.query_norm.scale": LAYER + "self_attn.q_norm.weight",
    "layers.*.key_norm.scale": LAYER + "self_attn.k_norm.weight",
    **{f"layers.*.qkv.{leaf}": _qkv(ending) for leaf, ending in LINEAR.items()},
    **named(
        {
            "layers.*.output": LAYER + "self_attn.o_proj",
            "layers.*.gate": LAYER + "mlp.gate_proj",
            "layers.*.up": LAYER + "mlp.up_proj",
            "layers.*.down": LAYER + "mlp.down_proj",
        },
        LINEAR,
    ),
}


def read_config(hf: Mapping[str, Any], **changes: Any) -> Config:
    """Read the fields that most families share; ``changes`` are those that this one reads itself.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    for name in _REQUIRED:
        if hf.get(name) is None:
            raise ValueError(f"the model's configuration lacks {name!r}")
    head_dim = head_size(hf)
    if "layers" not in changes:
        kind = LayerKind(Rope.from_hf(hf, head_dim), hf.get("sliding_window"))
        changes["layers"] = (kind,) * hf["num_hidden_layers"]
    longest = hf.get("max_position_embeddings", 2048)
    # Dynamic scaling keeps the model's own length in this field, the others the stretched one.
    ropes = [kind.rope for kind in changes["layers"] if kind.rope is not None]
    if ropes and ropes[0].scaling == "dynamic":
        longest = int(longest * ropes[0].factor)
    fields = {
        "vocab_size": hf["vocab_size"],
        "hidden_size": hf["hidden_size"],
        "intermediate_size": hf["intermediate_size"],
        "num_heads": hf["num_attention_heads"],
        "num_kv_heads": hf.get("num_key_value_heads") or hf["num_attention_heads"],
        "head_dim": head_dim,
        "max_length": longest,
        "norm_eps": hf.get("rms_norm_eps", 1e-6),
        "activation": activation(hf),
        "tied": bool(hf.get("tie_word_embeddings", False)),
    }
    return Config(**(fields | changes))


def head_size(hf: Mapping[str, Any]) -> int:
    """Channels of one head."""
    return hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]


def activation(hf: Mapping[str, Any], names=("hidden_activation", "hidden_act")) -> str:
    """The decoder's name for the activation.

    Raises:
        ValueError: it is not supported.
    """
    field = next((name for name in names if hf.get(name) is not None), names[-1])
    found = hf.get(field, "silu")
    if found not in _ACTIVATIONS:
        raise ValueError(
            f"{field} {found!r} is not supported; supported are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[found]


def layer_types(hf: Mapping[str, Any], local: Any) -> list[bool]:
    """Whether each layer is local: as ``layer_types`` says, else as ``local(index)`` does.

    Raises:
        ValueError: ``layer_types`` is not one known name a layer.
    """
    num, given = hf["num_hidden_layers"], hf.get("layer_types")
    if given is None:
        return [bool(local(index)) for index in range(num)]
    known = ("sliding_attention", "full_attention")
    if len(given) != num or not set(given) <= set(known):
        raise ValueError(f"layer_types must be {num} of {', '.join(known)}, got {given}")
    return [kind == "sliding_attention" for kind in given]


def table_of(config: Config, names: Mapping[str, Name] | None = None) -> Table:
    """The table of most families, with the ``names`` of this one."""
    every = {**_NAMES, **(names or {})}
    ignored: tuple[str, ...] = (r".*rotary_emb\.inv_freq",)
    if config.tied:
        every["head.kernel"], head = every["embedding"], every["head.kernel"]
        ignored = (*ignored, str(head).replace(".", r"\."))
    return Table(config, every, ignored=ignored)


def attention_biases(hf: Mapping[str, Any], default: bool = False) -> dict[str, bool]:
    """Fields of Config for families that say in one word whether attention has biases."""
    biased = bool(hf.get("attention_bias", default))
    return {"qkv_bias": biased, "output_bias": biased}
