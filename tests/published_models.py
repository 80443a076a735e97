"""Tiny models of every family, with random weights, as transformers itself saves them."""

import torch
import transformers

WINDOW = 24

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
LOCAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, **LOCAL}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 12, **LOCAL}),
    "gemma3": ("Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 12, **LOCAL}),
    "gemma3 that sees": ("Gemma3", {"text_config": {"head_dim": 16, **SIZES, **LOCAL}}),
    "phi3": ("Phi3", {"sliding_window": WINDOW, "partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2", {}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gpt_neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "pythia, one after the other": ("GPTNeoX", {"use_parallel_residual": False}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "mlp_only_layers": [0],
            "head_dim": 16,
        },
    ),
}
"""Name: the prefix of transformers' classes, and what its configuration changes."""


def tiny_model(name, seed=0):
    """A model of transformers, norms and biases random too."""
    prefix, changes = FAMILIES[name]
    sees = "text_config" in changes
    text = "Text" if prefix == "Gemma3" and not sees else ""
    changes = {**changes, "vision_config": VISION, "mm_tokens_per_image": 4} if sees else changes
    config = getattr(transformers, f"{prefix}{text}Config")(
        **(changes if sees else {**SIZES, **changes})
    )
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    head = "ForConditionalGeneration" if sees else head
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + head)(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim > 1 else 0.5
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


def tiny_folder(folder, name):
    """The same model in a folder, and the model."""
    model = tiny_model(name)
    model.save_pretrained(folder)
    return model
