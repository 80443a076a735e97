"""GGUF files as llama.cpp's converter writes them, from tiny models of transformers."""

import gguf
import numpy as np

from specjax.io.safetensors import SafetensorsCheckpoint

ROTATED = ("llama", "smollm3")
"""Architectures of which llama.cpp reorders queries and keys (a Mixtral is a llama to it)."""

TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def write_gguf(path, architecture, config, folder):
    """Convert the model that ``save_pretrained`` put into ``folder``."""
    writer = gguf.GGUFWriter(path, architecture)
    checkpoint = SafetensorsCheckpoint(folder)
    hub = {name: checkpoint.read(name) for name in checkpoint.names()}
    for name, values in ggml_tensors(architecture, config, hub).items():
        writer.add_tensor(name, values)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    METADATA.get(architecture, add_parameters)(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ggml_tensors(architecture, config, hub):
    """Rename and convert tensors as llama.cpp does."""
    (kind,) = (kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    converted, experts = {}, {}
    for name, values in hub.items():
        module, _, suffix = name.rpartition(".")
        if ".experts." in name:
            stack, number, part = module.split(".experts.")[0], *module.split(".")[-2:]
            experts.setdefault((stack, part), {})[int(number)] = values
            continue
        converted[f"{names.get_name(module)}.{suffix}"] = convert(
            architecture, config, name, values
        )
    for (stack, part), values in experts.items():
        # The name that the converter gives a stack, Mixtral's being of the original checkpoint.
        stack = stack.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
        stack = stack if part.startswith("w") else f"model.{stack}"
        name = names.get_name(f"{stack}.experts.{part}")
        converted[f"{name}.weight"] = np.stack([values[i] for i in range(len(values))])
    return converted


def convert(architecture, config, name, values):
    """Change the values of a tensor as llama.cpp does."""
    heads = config.num_attention_heads
    if architecture in ROTATED and (".q_proj." in name or ".k_proj." in name):
        count = heads if ".q_proj." in name else config.num_key_value_heads
        halves = values.reshape(count, 2, -1, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        values = values + 1
    if architecture == "gpt2" and name.endswith(TURNED):
        values = values.T
    if architecture == "gptneox" and ".query_key_value." in name:
        by_head = values.reshape(heads, 3, -1, *values.shape[1:])
        values = np.concatenate([by_head[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])
    return np.ascontiguousarray(values)


def add_parameters(writer, config):
    """What the converter writes for every model that has no way of its own."""
    rope = config.rope_parameters
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if experts := getattr(config, "num_local_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def _llama(writer, config):
    add_parameters(writer, config)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None)
    writer.add_rope_dimension_count(head_dim or config.hidden_size // config.num_attention_heads)


def _qwen3_moe(writer, config):
    add_parameters(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _gemma(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def _gemma2(writer, config):
    _gemma(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _gemma3(writer, config):
    _gemma(writer, config)
    rope = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_sliding_window(config.sliding_window)


def _phi3(writer, config):
    rope = config.rope_parameters
    add_parameters(writer, config)
    original = config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(original)
    part = rope["partial_rotary_factor"] * config.hidden_size
    writer.add_rope_dimension_count(int(part) // config.num_attention_heads)
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(original)) ** 0.5)
        for kind in ("long", "short"):
            table = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", table)


def _gpt2(writer, config):
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _gptneox(writer, config):
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * head_dim))
    writer.add_head_count(config.num_attention_heads)
    writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_layer_norm_eps(config.layer_norm_eps)


METADATA = {
    "llama": _llama,
    "smollm3": _llama,
    "qwen3moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gptneox": _gptneox,
}
