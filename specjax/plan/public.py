"""Published models by name: their config.json files, so that planning needs no download."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specjax.io.renamed import TEXT_MODELS
from specjax.models import Config, describe

_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
}
_GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 262_208,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131_072,
}
_SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49_152,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


def _llama3(factor: float, *sizes: int, **more: Any) -> dict[str, Any]:
    rope = {"rope_scaling": {**_LLAMA3_ROPE, "factor": factor}}
    return {**_LLAMA3, **_sizes(*sizes), **rope, **more}


PUBLIC: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _llama3(8.0, 4096, 14_336, 32, 32, 8),
    "llama-3.1-70b": _llama3(8.0, 8192, 28_672, 80, 64, 8),
    "llama-3.2-1b": _llama3(32.0, 2048, 8192, 16, 32, 8, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama3(32.0, 3072, 8192, 28, 24, 8, tie_word_embeddings=True),
    "qwen3-0.6b": {**_QWEN3, **_sizes(1024, 3072, 28, 16, 8), "tie_word_embeddings": True},
    "qwen3-1.7b": {**_QWEN3, **_sizes(2048, 6144, 28, 16, 8), "tie_word_embeddings": True},
    "qwen3-4b": {**_QWEN3, **_sizes(2560, 9728, 36, 32, 8), "tie_word_embeddings": True},
    "qwen3-8b": {**_QWEN3, **_sizes(4096, 12_288, 36, 32, 8)},
    "qwen3-32b": {**_QWEN3, **_sizes(5120, 25_600, 64, 64, 8)},
    "qwen3-30b-a3b": {
        **_QWEN3,
        **_sizes(2048, 6144, 48, 32, 4),
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 32_000,
        **_sizes(4096, 14_336, 32, 32, 8),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32_768,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "mistral-7b": {  # version 0.1, whose layers see a window
        "architectures": ["MistralForCausalLM"],
        "vocab_size": 32_000,
        **_sizes(4096, 14_336, 32, 32, 8),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "gemma-3-4b": {
        **_GEMMA3,
        **_sizes(2560, 10_240, 34, 8, 4),
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
    },
    "gemma-3-27b": {
        **_GEMMA3,
        **_sizes(5376, 21_504, 62, 32, 16),
        "head_dim": 128,
        "query_pre_attn_scalar": 168,
    },
    "smollm2-135m": {**_SMOLLM2, **_sizes(576, 1536, 30, 9, 3), "rope_theta": 100_000},
    "smollm2-360m": {**_SMOLLM2, **_sizes(960, 2560, 32, 15, 5), "rope_theta": 100_000},
    "smollm2-1.7b": {**_SMOLLM2, **_sizes(2048, 8192, 24, 32, 32), "rope_theta": 130_000},
}
"""What each model's config.json says of its shape, as published on huggingface.co."""


def find_config(name: str) -> Config:
    """Read the shape of a model: a name of ``PUBLIC``, a config.json, or a folder with one.

    >>> find_config("llama-3.1-70b").num_layers
    80

    Raises:
        ValueError: the name is not known, the file is no configuration, or the architecture is
            not supported.
    """
    if name.lower() in PUBLIC:
        return describe(PUBLIC[name.lower()]).config
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(
            f"{name!r} is neither a known model nor a config.json; known are {', '.join(PUBLIC)}"
        )
    try:
        published = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is no JSON ({error})") from None
    if not isinstance(published, dict):
        raise ValueError(f"{path}: is no configuration, which is a JSON object")
    architecture = (published.get("architectures") or [""])[0]
    if architecture in TEXT_MODELS:  # what also sees images keeps its language model inside
        inner = published.get("text_config") or {}
        published = {**inner, "architectures": [TEXT_MODELS[architecture]]}
    return describe(published).config
