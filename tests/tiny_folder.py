"""A random llama of one layer in a folder, as Hugging Face stores models: bytes are its tokens."""

import json

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, pre_tokenizers

STOP = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '>' }}{% endif %}"
)
HIDDEN, INNER, LAYERS, HEADS, KEYS = 16, 24, 1, 4, 2


def write_tiny_folder(folder, seed=0):
    """Write config.json, model.safetensors and a tokenizer with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, STOP])}
    folder.mkdir(exist_ok=True)
    _write_tokenizer(folder, vocabulary)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    save_file(
        {
            f"model.{name}.weight": rng.normal(size=shape).astype(np.float32)
            for name, shape in _shapes(len(vocabulary)).items()
        },
        folder / "model.safetensors",
    )
    return folder


def _shapes(vocab_size):
    size = HIDDEN // HEADS * KEYS
    layer = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (size, HIDDEN),
        "self_attn.v_proj": (size, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    layers = {f"layers.{i}.{name}": s for i in range(LAYERS) for name, s in layer.items()}
    return {"embed_tokens": (vocab_size, HIDDEN), "norm": (HIDDEN,)} | layers


def _write_tokenizer(folder, vocabulary):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([STOP])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": STOP, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
