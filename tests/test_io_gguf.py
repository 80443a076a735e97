"""GGUF files: every quantisation, every name, the rotary rows, and files that are broken."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization

from specjax.io import Checkpoint
from specjax.io.gguf import GGUFCheckpoint
from specjax.io.gguf_header import QUANTIZATIONS
from specjax.io.gguf_names import hub_name
from specjax.io.gguf_views import split_rotary_halves
from specjax.models import assemble, llama

SIZES = {"embedding": 16, "feed_forward": 24, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 11}


def write_gguf(path, tensors, *, architecture="llama", metadata=None, raw=None):
    """Write ``tensors``, {name: array}; ``raw`` gives the quantisation of arrays of blocks."""
    tensors = tensors or {"output_norm.weight": np.ones(4, np.float32)}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(SIZES["embedding"])
    writer.add_feed_forward_length(SIZES["feed_forward"])
    writer.add_block_count(min(SIZES["layers"], len(tensors)))
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_context_length(64)
    writer.add_vocab_size(SIZES["vocab"])
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, *value)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=(raw or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rotate_neighbours(weight, num_heads):
    """Order the rows of each head as GGUF does: 0, half, 1, half + 1 and so on."""
    heads = np.split(weight, num_heads)
    half = len(heads[0]) // 2
    order = [row for i in range(half) for row in (i, half + i)]
    return np.concatenate([head[order] for head in heads])


def llama_tensors(rng):
    """Return the same random model under the names of GGUF and of Hugging Face."""
    width, inner = SIZES["embedding"], SIZES["feed_forward"]
    kv_width = width // SIZES["heads"] * SIZES["kv_heads"]
    shapes = {
        "attn_norm": ("input_layernorm", (width,)),
        "attn_q": ("self_attn.q_proj", (width, width)),
        "attn_k": ("self_attn.k_proj", (kv_width, width)),
        "attn_v": ("self_attn.v_proj", (kv_width, width)),
        "attn_output": ("self_attn.o_proj", (width, width)),
        "ffn_norm": ("post_attention_layernorm", (width,)),
        "ffn_gate": ("mlp.gate_proj", (inner, width)),
        "ffn_up": ("mlp.up_proj", (inner, width)),
        "ffn_down": ("mlp.down_proj", (width, inner)),
    }
    table = {
        "token_embd": ("model.embed_tokens", (SIZES["vocab"], width)),
        "output_norm": ("model.norm", (width,)),
        "output": ("lm_head", (SIZES["vocab"], width)),
    }
    for layer in range(SIZES["layers"]):
        for ours, (theirs, shape) in shapes.items():
            table[f"blk.{layer}.{ours}"] = (f"model.layers.{layer}.{theirs}", shape)
    ggml, hf = {}, {}
    for name, (theirs, shape) in table.items():
        values = hf[f"{theirs}.weight"] = rng.normal(size=shape).astype(np.float32)
        heads = {"attn_q": SIZES["heads"], "attn_k": SIZES["kv_heads"]}.get(name.split(".")[-1])
        ggml[f"{name}.weight"] = rotate_neighbours(values, heads) if heads else values
    return ggml, hf


def blocks_of(kind, rng, rows=3):
    """Return rows of valid blocks: random bits, but finite scales."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, 2 * size), np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for start in (0, size):
        for at in scales[kind.name]:
            value = rng.normal(size=(rows, 1)).astype(np.float16)
            blocks[:, start + at : start + at + 2] = value.view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_each_quantisation_reads_as_what_was_written(name, tmp_path):
    rng, kind = np.random.default_rng(0), Quantization[name]
    values = rng.normal(size=(3, 64)).astype(np.float32)
    stored = blocks_of(kind, rng) if name.endswith("_K") else gguf.quants.quantize(values, kind)
    raw = {} if name in ("F32", "F16") else {"output.weight": kind}
    path = write_gguf(tmp_path / "m.gguf", {"output.weight": stored}, raw=raw)
    checkpoint = GGUFCheckpoint(path)
    read = checkpoint.read("lm_head.weight")
    expected = stored if name in ("F32", "F16") else gguf.quants.dequantize(stored, kind)
    assert read.dtype == {"F16": np.float16, "BF16": ml_dtypes.bfloat16}.get(name, np.float32)
    assert read.shape == checkpoint.shape("lm_head.weight") == expected.shape
    np.testing.assert_array_equal(read.astype(np.float32), expected.astype(np.float32))
    for part in [
        (slice(1, 2),),
        (slice(0, 0),),
        (slice(None), slice(40, 50)),
        (slice(2), slice(9)),
    ]:
        np.testing.assert_array_equal(checkpoint.read("lm_head.weight", part), read[part])
    assert np.isfinite(read.astype(np.float32)).all()
    if not name.endswith("_K"):
        step = {"Q4_0": 0.3, "Q4_1": 0.2, "Q5_0": 0.15, "Q5_1": 0.1, "Q8_0": 0.02}.get(name, 0.01)
        np.testing.assert_allclose(
            read.astype(np.float32), values, atol=step * np.abs(values).max()
        )


def test_a_whole_model_is_found_under_its_hugging_face_names(tmp_path):
    ggml, hf = llama_tensors(np.random.default_rng(1))
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", ggml))
    assert isinstance(checkpoint, Checkpoint)
    assert set(checkpoint.names()) == set(hf)
    for name, values in hf.items():
        np.testing.assert_array_equal(checkpoint.read(name), values, err_msg=name)
    config = llama.config_from_hf(checkpoint.config)
    weights = assemble(llama.weight_table(config), checkpoint)
    assert not config.tied
    down = hf["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(weights.layers[1].down.kernel, down.T)


def test_a_file_without_output_head_is_tied(tmp_path):
    ggml, _ = llama_tensors(np.random.default_rng(1))
    del ggml["output.weight"]
    assert GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", ggml)).config["tie_word_embeddings"]


def test_rotary_rows_are_put_back():
    rows = np.arange(8)  # two heads of four rows, as GGUF stores rows 0 1 2 3 of each
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7])
    np.testing.assert_array_equal(split_rotary_halves(stored, num_heads=2), rows)
    bias = np.random.default_rng(0).normal(size=(12, 5))
    np.testing.assert_array_equal(split_rotary_halves(rotate_neighbours(bias, 2), 2), bias)


def test_an_unknown_tensor_keeps_its_name():
    assert hub_name("blk.0.attn_sinks.weight") == "blk.0.attn_sinks.weight"
    assert hub_name("blk.12.attn_k.bias") == "model.layers.12.self_attn.k_proj.bias"


def test_linear_rope_scaling_is_read(tmp_path):
    metadata = {
        "llama.rope.scaling.type": ("linear", gguf.GGUFValueType.STRING),
        "llama.rope.scaling.factor": (4.0, gguf.GGUFValueType.FLOAT32),
    }
    path = write_gguf(tmp_path / "m.gguf", {}, metadata=metadata)
    assert GGUFCheckpoint(path).config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def llama3_factors(head_dim, theta, factor):
    """The divisors of llama.cpp's converter: three bands, after Llama 3.1's reference code."""
    divisors = []
    for frequency in theta ** -(np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4.0:
            divisors.append(1.0)
        elif wavelength > 8192 / 1.0:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama_3_rope_scaling_is_recovered_from_its_divisors(tmp_path):
    metadata = {
        "llama.block_count": (1, gguf.GGUFValueType.UINT32),
        "llama.rope.freq_base": (500000.0, gguf.GGUFValueType.FLOAT32),
        "llama.rope.dimension_count": (64, gguf.GGUFValueType.UINT32),
    }
    factors = llama3_factors(64, 500000.0, 32.0)
    tensors = {"rope_freqs.weight": factors, "output_norm.weight": np.ones(4, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tensors, metadata=metadata)
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.config["rope_scaling"]["rope_type"] == "llama3"
    assert checkpoint.config["rope_scaling"]["factor"] == 32.0
    assert list(checkpoint.names()) == ["model.norm.weight"]
    write_gguf(path, tensors | {"rope_freqs.weight": factors**2}, metadata=metadata)
    with pytest.raises(ValueError, match="unsupported rope scaling"):
        GGUFCheckpoint(path)


def test_unsupported_things_are_named(tmp_path):
    path = tmp_path / "m.gguf"
    with pytest.raises(ValueError, match=r"m\.gguf: unsupported architecture 'mamba'"):
        GGUFCheckpoint(write_gguf(path, {}, architecture="mamba"))
    stored, raw = np.zeros((1, 18), np.uint8), {"output.weight": Quantization.IQ4_NL}
    with pytest.raises(ValueError, match=r"'output\.weight' has unsupported quantisation IQ4_NL"):
        GGUFCheckpoint(write_gguf(path, {"output.weight": stored}, raw=raw))
    for key, value, kind, message in [
        ("rope.scaling.type", "su", "STRING", "unsupported rope scaling 'su'"),
        ("expert_count", 600, "UINT32", r"llama\.expert_count is 600; at most 512"),
        ("attention.value_length", 3, "UINT32", "values of another length than keys"),
        ("block_count", 10**12, "UINT64", "asks for 1000000000000 layers, .* only 1 tensors"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "FLOAT32", "positive number, got nan"),
        ("attention.head_count", [4, 4], "ARRAY", "positive number, got 'ndarray'"),
    ]:
        metadata = {f"llama.{key}": (value, gguf.GGUFValueType[kind])}
        with pytest.raises(ValueError, match=message):
            GGUFCheckpoint(write_gguf(path, {}, metadata=metadata))
    part = {"split.count": (3, gguf.GGUFValueType.UINT16)}
    with pytest.raises(ValueError, match=r"m\.gguf: is a part of a model; join them"):
        GGUFCheckpoint(write_gguf(path, {}, metadata=part))


def test_a_yarn_of_llama_cpps_own_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    yarn = {
        "llama.rope.scaling.type": ("yarn", gguf.GGUFValueType.STRING),
        "llama.rope.scaling.factor": (4.0, gguf.GGUFValueType.FLOAT32),
        "llama.rope.scaling.original_context_length": (16, gguf.GGUFValueType.UINT32),
    }
    found = GGUFCheckpoint(write_gguf(path, {}, metadata=yarn)).config["rope_scaling"]
    assert found == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    yarn["llama.rope.scaling.yarn_ext_factor"] = (0.5, gguf.GGUFValueType.FLOAT32)
    with pytest.raises(ValueError, match=r"'yarn' with rope\.scaling\.yarn_ext_factor"):
        GGUFCheckpoint(write_gguf(path, {}, metadata=yarn))


def test_a_window_makes_a_mistral_of_a_llama(tmp_path):
    window = {"llama.attention.sliding_window": (8, gguf.GGUFValueType.UINT32)}
    config = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", {}, metadata=window)).config
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 8


def test_gemmas_layers_may_be_listed(tmp_path):
    pattern = [True, False]
    metadata = {
        "gemma3.attention.sliding_window": (8, gguf.GGUFValueType.UINT32),
        "gemma3.attention.sliding_window_pattern": (pattern, gguf.GGUFValueType.ARRAY),
    }
    tensors = {name: np.ones(4, np.float32) for name in ("output_norm.weight", "token_embd.weight")}
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture="gemma3", metadata=metadata)
    found = GGUFCheckpoint(path).config["layer_types"]
    assert found == ["sliding_attention", "full_attention"]
    metadata["gemma3.attention.sliding_window_pattern"] = (pattern[:1], gguf.GGUFValueType.ARRAY)
    write_gguf(path, tensors, architecture="gemma3", metadata=metadata)
    with pytest.raises(ValueError, match="has 1 values for 2 layers"):
        GGUFCheckpoint(path)


def test_heads_that_do_not_divide_the_rows_are_named_with_the_tensor(tmp_path):
    tensors = {"blk.0.attn_q.weight": np.ones((6, 4), np.float32)}
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", tensors))
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.self_attn\.q_proj\.weight' cannot"):
        checkpoint.read("model.layers.0.self_attn.q_proj.weight")


def test_a_missing_key_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ValueError, match=r"llama\.attention\.head_count must be a positive number, got None"
    ):
        GGUFCheckpoint(tmp_path / "m.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    ggml, _ = llama_tensors(np.random.default_rng(1))
    tokens = {"tokenizer.ggml.token_type": ([1] * 9, gguf.GGUFValueType.ARRAY)}
    path = write_gguf(tmp_path / "m.gguf", ggml, metadata=tokens)
    content = path.read_bytes()
    header_end = content.index(b"ffn_down") + 200
    for size in [0, 3, 4, 10, 24, 40, *range(50, header_end, 37), len(content) - 64]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"m\.gguf is truncated or corrupt"):
            GGUFCheckpoint(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(ValueError, match="no GGUF file .*magic"):
        GGUFCheckpoint(path)


def test_a_corrupt_length_is_refused_at_once(tmp_path):
    tokens = {"tokenizer.ggml.token_type": ([1] * 9, gguf.GGUFValueType.ARRAY)}
    path = write_gguf(tmp_path / "m.gguf", {}, metadata=tokens)
    content = bytearray(path.read_bytes())
    at = content.index(b"token_type") + len("token_type") + 8  # past the types of value and items
    content[at : at + 8] = b"\xff" * 7 + b"\x7f"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="truncated or corrupt"):
        GGUFCheckpoint(path)


def test_a_missing_or_forbidden_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none\.gguf does not exist"):
        GGUFCheckpoint(tmp_path / "none.gguf")
    path = write_gguf(tmp_path / "m.gguf", {})

    def forbid(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", forbid)
    with pytest.raises(PermissionError, match=r"m\.gguf may not be read"):
        GGUFCheckpoint(path)
