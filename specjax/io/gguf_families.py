"""What a GGUF file's metadata says of each family, in the words of its configuration on the Hub.

Where llama.cpp has a number in its code and none in the file, so has this: NoPE layers of
SmolLM3, window patterns and local rope bases of Gemma, and which Gemma scales its queries by
hidden size over heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from specjax.io.gguf_keys import Keys
from specjax.io.gguf_rope import rope_scaling

_LOCAL_THETA = 10_000.0  # of Gemma 3's layers with a window
_GEMMA2_27B, _GEMMA3_27B = 46, 62  # layers


def num_experts(keys: Keys) -> int:
    """How many experts a layer has; 0 where it has none."""
    return keys.whole("expert_count", 0, least=0)


def num_heads(keys: Keys) -> tuple[int, int]:
    """How many heads queries have, and how many keys and values."""
    heads = keys.whole("attention.head_count")
    return heads, keys.whole("attention.head_count_kv", heads)


def _decoder(keys: Keys, names: Collection[str], factors, model: str, kind: str) -> dict[str, Any]:
    """What decoders with RMS norms and rotary positions have in common."""
    heads, kv_heads = num_heads(keys)
    hidden = keys.whole("embedding_length")
    theta = keys.real("rope.freq_base", 10_000.0)
    head_dim = keys.whole("attention.key_length", max(1, hidden // heads))
    if keys.whole("attention.value_length", head_dim) != head_dim:
        raise keys.error("unsupported: values of another length than keys")
    return {
        "architectures": [model],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "rope_theta": theta,
        "rope_scaling": rope_scaling(keys, factors, theta),
        "tie_word_embeddings": "lm_head.weight" not in names,
    }


def _biases(names: Collection[str]) -> dict[str, bool]:
    """For families whose configuration says whether there are any."""
    layer = "model.layers.0."
    return {
        "attention_bias": layer + "self_attn.q_proj.bias" in names,
        "mlp_bias": layer + "mlp.up_proj.bias" in names,
    }


def _llama(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "LlamaForCausalLM", "llama")
    window = keys.whole("attention.sliding_window", 0, least=0)
    if window:  # only then does a Mistral differ from a Llama
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
        config |= {"sliding_window": window}
    return config | _turned_head_dim(keys, config) | _biases(names)


def _mixtral(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "MixtralForCausalLM", "mixtral")
    return (
        config
        | _turned_head_dim(keys, config)
        | {
            "num_local_experts": num_experts(keys),
            "num_experts_per_tok": keys.whole("expert_used_count"),
            "sliding_window": keys.whole("attention.sliding_window", 0, least=0) or None,
        }
    )


def _turned_head_dim(keys: Keys, config: Mapping[str, Any]) -> dict[str, int]:
    """Older files of Llama give its head's size as the number of channels that turn."""
    return {"head_dim": keys.whole("rope.dimension_count", config["head_dim"])}


def _qwen2(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "Qwen2ForCausalLM", "qwen2")
    return config | {"use_sliding_window": False}


def _qwen3(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "Qwen3ForCausalLM", "qwen3")
    return config | _biases(names) | {"use_sliding_window": False}


def _qwen3_moe(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "Qwen3MoeForCausalLM", "qwen3_moe")
    return (
        config
        | _biases(names)
        | {
            "num_experts": num_experts(keys),
            "num_experts_per_tok": keys.whole("expert_used_count"),
            "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        }
    )


def _gemma(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "GemmaForCausalLM", "gemma")
    gelu = "gelu_pytorch_tanh"
    return config | _biases(names) | {"hidden_act": gelu, "hidden_activation": gelu}


def _gemma2(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _gemma(keys, names, factors)
    return config | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "query_pre_attn_scalar": _query_scalar(config, _GEMMA2_27B),
        "sliding_window": keys.whole("attention.sliding_window", 4096),
        "layer_types": _layer_types(keys, 2),
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _gemma(keys, names, factors)
    window = keys.whole("attention.sliding_window", 0, least=0)
    capped = keys.has("final_logit_softcapping")
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": _query_scalar(config, _GEMMA3_27B),
        "sliding_window": window or None,
        "layer_types": _layer_types(keys, 6 if window else 1),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", _LOCAL_THETA),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.real("final_logit_softcapping") if capped else None,
    }


def _query_scalar(config: Mapping[str, Any], layers_of_27b: int) -> int:
    if config["num_hidden_layers"] == layers_of_27b:
        return max(1, config["hidden_size"] // config["num_attention_heads"])
    return config["head_dim"]


def _layer_types(keys: Keys, period: int) -> list[str]:
    """Every layer has a window but each ``period``-th, unless the file says otherwise."""
    layers, name = keys.whole("block_count"), "attention.sliding_window_pattern"
    given = keys.metadata.get(f"{keys.kind}.{name}")
    if isinstance(given, np.ndarray):
        if given.size != layers:
            raise keys.error(f"{keys.kind}.{name} has {given.size} values for {layers} layers")
        windowed = given.astype(bool).tolist()
    else:
        period = keys.whole(name, period)
        windowed = [(layer + 1) % period != 0 for layer in range(layers)]
    return ["sliding_attention" if local else "full_attention" for local in windowed]


def _phi3(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "Phi3ForCausalLM", "phi3")
    length = config["max_position_embeddings"]
    turned = keys.whole("rope.dimension_count", config["head_dim"])
    return config | {
        "partial_rotary_factor": turned / config["head_dim"],
        "original_max_position_embeddings": keys.whole(
            "rope.scaling.original_context_length", length
        ),
        "sliding_window": keys.whole("attention.sliding_window", 0, least=0) or None,
    }


def _olmo2(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    if keys.whole("attention.sliding_window", 0, least=0):
        raise keys.error("unsupported: olmo2 with a sliding window (Olmo 3)")
    return _decoder(keys, names, factors, "Olmo2ForCausalLM", "olmo2") | _biases(names)


def _smollm3(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    config = _decoder(keys, names, factors, "SmolLM3ForCausalLM", "smollm3")
    layers = range(config["num_hidden_layers"])
    return (
        config
        | _biases(names)
        | {
            "no_rope_layer_interval": 4,
            "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers],  # 1: it has rope
            "use_sliding_window": False,
        }
    )


def _gpt2(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    del factors  # positions are learned
    hidden, inner = keys.whole("embedding_length"), keys.whole("feed_forward_length")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_inner": inner if inner != 4 * hidden else None,
        "n_layer": keys.whole("block_count"),
        "n_head": keys.whole("attention.head_count"),
        "n_positions": keys.whole("context_length"),
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "tie_word_embeddings": "lm_head.weight" not in names,
    }


def _gptneox(keys: Keys, names: Collection[str], factors) -> dict[str, Any]:
    heads, hidden = keys.whole("attention.head_count"), keys.whole("embedding_length")
    theta, head_dim = keys.real("rope.freq_base", 10_000.0), max(1, hidden // heads)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_size": hidden,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "max_position_embeddings": keys.whole("context_length"),
        "layer_norm_eps": keys.real("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "rotary_pct": keys.whole("rope.dimension_count", head_dim) / head_dim,
        "rotary_emb_base": theta,
        "rope_scaling": rope_scaling(keys, factors, theta),
        "use_parallel_residual": bool(keys.metadata.get("gptneox.use_parallel_residual", True)),
        "attention_bias": "gpt_neox.layers.0.attention.dense.bias" in names,
        "tie_word_embeddings": "embed_out.weight" not in names,
    }


Translation = Callable[[Keys, Collection[str], Mapping[str, np.ndarray]], dict[str, Any]]

FAMILIES: dict[str, Translation] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "gpt2": _gpt2,
    "gptneox": _gptneox,
}
