"""Names of GGUF's tensors and of the Hub's, and what llama.cpp does to a weight when it stores it.

After llama.cpp's own conversions (its folder ``conversion/``), read backwards: for ``llama`` and
``smollm3`` the rows of queries and keys are put in another order, Gemma's norms carry the one
that is added to them, GPT-2's linear weights are turned, GPT-NeoX's fused weight is taken apart
by kind instead of by head, and experts are stacked.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specjax.io.gguf_header import Tensor
from specjax.io.gguf_views import View, interleave_heads, split_rotary_halves

MAX_EXPERTS = 512  # of llama.cpp itself

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_qkv": "self_attn.qkv_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_BEFORE = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_AROUND = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class Naming:
    """Hub names of a family's modules; ``{}`` in one is the index of an expert."""

    layers: Mapping[str, str]
    layer: str = "model.layers"
    top: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
    )


_DECODER = Naming(_ATTENTION | _MLP | _BEFORE)
_SANDWICH = Naming(_ATTENTION | _MLP | _AROUND)
NAMINGS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma", "smollm3"), _DECODER),
    **dict.fromkeys(("gemma2", "gemma3", "olmo2"), _SANDWICH),
    "phi3": Naming(_ATTENTION | _BEFORE | _MLP | {"ffn_up": "mlp.gate_up_proj"}),
    "mixtral": Naming(
        _ATTENTION
        | _BEFORE
        | {
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        }
    ),
    "qwen3moe": Naming(
        _ATTENTION
        | _BEFORE
        | {
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_exps": "mlp.experts.{}.gate_proj",
            "ffn_down_exps": "mlp.experts.{}.down_proj",
            "ffn_up_exps": "mlp.experts.{}.up_proj",
        }
    ),
    "gpt2": Naming(
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        "transformer.h",
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
    ),
    "gptneox": Naming(
        _BEFORE
        | {
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        "gpt_neox.layers",
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
    ),
}


def hub_views(
    kind: str, tensors: Sequence[Tensor], heads: int, kv_heads: int, experts: int
) -> dict[str, View]:
    """Map Hub names to the parts of the file; a tensor without such a name keeps its own.

    Args:
        kind: a key of ``NAMINGS``.
        tensors: all of the file.
        heads: of queries.
        kv_heads: of keys and values.
        experts: how many a stack holds; 0 without any.

    Raises:
        ValueError: two tensors have one name, or a stack holds another number of experts.
    """
    views = {}
    for tensor in tensors:
        view = _view(kind, tensor, heads, kv_heads)
        for name, part in _parts(hub_name(tensor.name, kind), view, experts):
            if name in views:
                raise ValueError(f"{name!r} is there twice")
            views[name] = part
    return views


def hub_name(name: str, kind: str = "llama") -> str:
    """Translate a tensor's name.

    >>> hub_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    naming = NAMINGS[kind]
    module, _, suffix = name.rpartition(".")
    layer = re.fullmatch(r"blk\.([0-9]+)\.(\w+)", module)
    if layer and layer[2] in naming.layers:
        return f"{naming.layer}.{layer[1]}.{naming.layers[layer[2]]}.{suffix}"
    return f"{naming.top[module]}.{suffix}" if module in naming.top else name


def _parts(name: str, view: View, experts: int) -> Iterator[tuple[str, View]]:
    if "{}" not in name:
        yield name, view
        return
    shape = view.tensor.shape
    if len(shape) != 3 or shape[0] != experts:
        raise ValueError(
            f"tensor {view.tensor.name!r} of shape {shape} is no stack of {experts} experts"
        )
    for expert in range(experts):
        yield name.format(expert), dataclasses.replace(view, expert=expert)


def _view(kind: str, tensor: Tensor, heads: int, kv_heads: int) -> View:
    module, _, suffix = tensor.name.rpartition(".")
    part = module.rpartition(".")[2]
    if kind in ("llama", "mixtral", "smollm3") and part in ("attn_q", "attn_k"):
        number = heads if part == "attn_q" else kv_heads
        return View(tensor, order=lambda rows: _order(split_rotary_halves, tensor, rows, 2, number))
    if kind == "gptneox" and part == "attn_qkv":
        return View(tensor, order=lambda rows: _order(interleave_heads, tensor, rows, 3, heads))
    if kind.startswith("gemma") and tensor.name.endswith("norm.weight"):
        return View(tensor, excess=1.0)
    turned = part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down") and suffix == "weight"
    return View(tensor, transposed=kind == "gpt2" and turned)


def _order(undo, tensor: Tensor, rows: int, parts: int, heads: int) -> np.ndarray:
    if rows % (parts * heads):
        raise ValueError(f"tensor {tensor.name!r}: {heads} heads do not divide its {rows} rows")
    return undo(np.arange(rows), heads)
