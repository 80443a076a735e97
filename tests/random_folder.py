"""Llamas of any size with random weights in a folder, without a tokenizer and without torch."""

import json

import numpy as np
from safetensors.numpy import save_file

from specjax.models import describe

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128,
}


def write_random_folder(folder, *, tensors_a_shard=1000, **changes):
    """Write shards one by one, and return their total size in bytes and that of the largest tensor.

    Memory holds one shard at a time.
    """
    folder.mkdir()
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    shapes, rng = describe(config).stored(), np.random.default_rng(0)
    names, weight_map = list(shapes), {}
    for first in range(0, len(names), tensors_a_shard):
        file = f"model-{first}.safetensors"
        shard = {
            x: rng.standard_normal(shapes[x], np.float32) for x in names[first:][:tensors_a_shard]
        }
        save_file(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sizes = [4 * int(np.prod(shape)) for shape in shapes.values()]
    return sum(sizes), max(sizes)
