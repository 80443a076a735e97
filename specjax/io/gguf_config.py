"""The metadata of a GGUF file as the configuration that Hugging Face would store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

ARCHITECTURES = {"llama": "LlamaForCausalLM"}

_REQUIRED = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}

_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_LENGTH = 1.0, 4.0, 8192


def config_from_metadata(
    metadata: Mapping[str, Any], names: Collection[str], rope_factors: np.ndarray | None, path: str
) -> dict[str, Any]:
    """Translate GGUF metadata; ``names`` are the tensors in the file, under their HF names.

    ``rope_factors`` is the file's table of rotary divisors, f32[head_dim / 2], or None.

    Raises:
        ValueError: the architecture or the rope scaling is not supported, or a key is missing or no
            positive number.
    """
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{path}: unsupported architecture {kind!r}; supported in GGUF are "
            f"{', '.join(ARCHITECTURES)}"
        )
    if metadata.get(f"{kind}.expert_count"):
        raise ValueError(f"{path}: unsupported architecture {kind!r} with a mixture of experts")
    for key in _REQUIRED.values():
        found = metadata.get(f"{kind}.{key}")
        if not isinstance(found, int | float) or found <= 0:
            raise ValueError(f"{path}: {kind}.{key} must be a positive number, got {found!r}")

    def value(key: str, default: Any) -> Any:
        return metadata.get(f"{kind}.{key}", default)

    config = {ours: metadata[f"{kind}.{theirs}"] for ours, theirs in _REQUIRED.items()}
    heads = config["num_attention_heads"]
    head_dim = value("rope.dimension_count", config["hidden_size"] // heads)
    theta = value("rope.freq_base", 10000.0)
    vocab = metadata.get("tokenizer.ggml.tokens", ())
    return config | {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": value("attention.key_length", head_dim),
        "vocab_size": value("vocab_size", len(vocab)),
        "hidden_act": "silu",
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(value, rope_factors, theta, path),
        "tie_word_embeddings": "lm_head.weight" not in names,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in names,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _rope_scaling(value, rope_factors: np.ndarray | None, theta: float, path: str) -> dict | None:
    kind = value("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ValueError(f"{path}: unsupported rope scaling {kind!r}; supported are none, linear")
    if rope_factors is not None:
        return _llama3_scaling(rope_factors, theta, path)
    if kind == "linear":
        return {"rope_type": "linear", "factor": value("rope.scaling.factor", 1.0)}
    return None


def _llama3_scaling(factors: np.ndarray, theta: float, path: str) -> dict[str, Any]:
    """Recover Llama 3's rope scaling from the divisors it was stored as.

    Only ``factor`` differs between its models, and it is the largest divisor; the table is
    computed from it again, so that another scheme is refused and not guessed at.
    """
    factor = float(factors.max())
    wavelength = 2 * np.pi * theta ** (np.arange(factors.size) / factors.size)
    smooth = (_LLAMA3_LENGTH / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    smooth = np.clip(smooth, 0.0, 1.0)
    if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise ValueError(f"{path}: unsupported rope scaling: rope_freqs is not that of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_LENGTH,
    }
