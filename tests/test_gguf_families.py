"""GGUF files of every family: tensors and configuration are those of the model they came from."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_gguf import write_gguf
from tokenizers import Regex, pre_tokenizers

import specjax
from specjax.io.fetch import fetch
from specjax.io.gguf import GGUFCheckpoint
from specjax.io.gguf_tokenizer import tokenizer_from_metadata
from specjax.io.load import from_checkpoint
from specjax.io.safetensors import SafetensorsCheckpoint

torch = pytest.importorskip("torch")
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from transformers.integrations.gguf.gguf_tokenizer_mapping import (  # noqa: E402
    GGUF_PRE_TOKENIZER_SPLITS,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: E402

SIZES = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
WIDE = SIZES | {"head_dim": 16}
LONG = {"rope_type": "longrope", "long_factor": [1.0, 1.5, 2.0, 4.0], "short_factor": [1.0] * 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = {"vocab_size": 24, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
MOE = {"moe_intermediate_size": 24, "norm_topk_prob": True} | EXPERTS
GEMMA3 = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

FAMILIES = {
    "llama": ("llama", "llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "mixtral": ("llama", "mixtral", SIZES | {"head_dim": 8} | EXPERTS),
    "qwen2": ("qwen2", "qwen2", SIZES | {"tie_word_embeddings": True}),
    "qwen2 yarn": ("qwen2", "qwen2", SIZES | {"rope_parameters": YARN | {"rope_theta": 1e6}}),
    "qwen3": ("qwen3", "qwen3", WIDE),
    "qwen3moe": ("qwen3moe", "qwen3_moe", WIDE | MOE),
    "gemma": ("gemma", "gemma", WIDE),
    "gemma2": ("gemma2", "gemma2", WIDE | {"query_pre_attn_scalar": 16, "sliding_window": 8}),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        WIDE
        | {"num_hidden_layers": 7, "query_pre_attn_scalar": 16, "sliding_window": 8}
        | {"rope_parameters": GEMMA3},
    ),
    "phi3": (
        "phi3",
        "phi3",
        SIZES
        | {"sliding_window": 9, "original_max_position_embeddings": 64, "pad_token_id": 0}
        | {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default"}},
    ),
    "phi3 longrope": (
        "phi3",
        "phi3",
        SIZES
        | {"original_max_position_embeddings": 16, "pad_token_id": 0}
        | {"rope_parameters": LONG},
    ),
    "olmo2": ("olmo2", "olmo2", SIZES),
    "smollm3": ("smollm3", "smollm3", SIZES | {"num_hidden_layers": 4, "pad_token_id": 0}),
    "gpt2": ("gpt2", "gpt2", GPT2),
    "gptneox": ("gptneox", "gpt_neox", {k: v for k, v in SIZES.items() if "key_value" not in k}),
}

WITHOUT_MEANING = {
    *("architectures", "bos_token_id", "eos_token_id", "pad_token_id", "dtype"),
    *("transformers_version", "_name_or_path", "hidden_act"),
}
"""Not of the model, or (an activation) compared by itself."""

READ_BY_TRANSFORMERS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")
"""Of the others it knows no GGUF file, or stacks experts in a way of its own."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A tiny random model: its configuration, its folder and its GGUF file."""
    architecture, kind, settings = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **settings)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():  # norms and biases are 1 and 0 so far
        torch.nn.init.normal_(weight, mean=float(name.endswith("norm.weight")), std=0.5)
    model.save_pretrained(folder)
    return config, folder, write_gguf(folder / "model.gguf", architecture, config, folder)


def test_every_tensor_is_that_of_the_hub(family):
    _, folder, path = family
    hub, ours = SafetensorsCheckpoint(folder), GGUFCheckpoint(path)
    assert set(ours.names()) == set(hub.names())
    for name in hub.names():
        values = hub.read(name)
        assert ours.shape(name) == values.shape, name
        # Gemma's norms lose the last bits where one is added to them and taken away.
        np.testing.assert_allclose(ours.read(name), values, rtol=0, atol=3e-7, err_msg=name)


def test_parts_are_those_of_the_whole(family):
    ours = GGUFCheckpoint(family[2])
    parts = [slice(0, 3), slice(5, 9), slice(None, None, 3), slice(None), slice(0, 0)]
    for name in ours.names():
        whole = ours.read(name)
        for part in parts:
            np.testing.assert_array_equal(ours.read(name, (part,)), whole[part], err_msg=name)
            if whole.ndim > 1:
                index = (slice(1, None), part)
                np.testing.assert_array_equal(ours.read(name, index), whole[index], err_msg=name)


def test_the_configuration_means_the_same_model(family):
    config, _, path = family
    found = GGUFCheckpoint(path).config
    read = AutoConfig.for_model(**found).to_dict()
    for name, value in config.to_dict().items():
        if name not in WITHOUT_MEANING:
            assert read[name] == near(value), name
    assert found["architectures"] == [type(AutoModelForCausalLM.from_config(config)).__name__]
    for name in ("hidden_act", "hidden_activation", "activation_function"):
        assert getattr(config, name, None) in (None, found.get(name)), name


def test_the_model_is_that_of_the_folder(family):
    _, folder, path = family
    theirs, ours = (
        from_checkpoint(x) for x in (SafetensorsCheckpoint(folder), GGUFCheckpoint(path))
    )
    assert ours.config == theirs.config
    for a, b in zip(jax.tree.leaves(ours.weights), jax.tree.leaves(theirs.weights), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-7)


def near(value):
    """Equal but for what a float32 in the file rounds."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items()}
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("family", READ_BY_TRANSFORMERS, indirect=True)
def test_transformers_reads_the_same(family):
    config, _, path = family
    found = GGUFCheckpoint(path)
    for name, values in read_by_transformers(path, config).items():
        np.testing.assert_array_equal(found.read(name), values, err_msg=name)


def read_by_transformers(path, config):
    """Return what it loads, but for tied weights; its loader proper wants another package."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert tensors
    return {name: values.numpy() for name, values in tensors.items()}


TEXTS = [
    "Hello world, it's 12345.",
    "  two   spaces\n\n\nand lines\r\n\tand a tab ",
    "emoji 🤖🏳️‍🌈👩‍👩‍👧‍👦 and a flag 🇫🇷",
    "Ünïcödé, Ελληνικά, русский, עברית, हिन्दी, 中文字符, 日本語",
    "def f(x):\n    return x ** 2  # squares\n",
    "<start_of_turn>user\nHi<end_of_turn>",
    "<table>  <b>x</b> \x00 \ufffd" + " " * 40,
    "",
    " ",
]


@pytest.mark.parametrize("kind", ["llama-bpe", "dbrx", "smaug-bpe", "qwen2", "gpt-4o", "tekken"])
def test_words_are_cut_as_transformers_cuts_them(kind):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    values = {"model": "gpt2", "pre": kind, "tokens": alphabet, "merges": []}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    ours = tokenizer_from_metadata(metadata, "m.gguf").backend.pre_tokenizer
    theirs = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[kind]), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs = pre_tokenizers.Sequence([theirs, bytes_of])
    for text in [*TEXTS, "CamelCase HTTPServer don't DON'T 1234567 a/b/\n/c ÀÉ's ǅ"]:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and torch, while they read the file
def test_gemma_is_what_transformers_reads():
    path = fetch("gemma-3-270m")
    ours = GGUFCheckpoint(path)
    tokenizer = ours.tokenizer()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs(text)["input_ids"], text
        if "<start" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.vocabulary) == 262_144
    read = read_by_transformers(path, AutoConfig.for_model(**ours.config))
    assert len(read) == len(list(ours.names())) == 236
    for name, values in read.items():
        np.testing.assert_array_equal(ours.read(name), values, err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and torch, while they read the file
def test_gemmas_logits_are_those_of_transformers_past_its_window():
    path = fetch("gemma-3-270m")
    checkpoint = GGUFCheckpoint(path)
    config = AutoConfig.for_model(**checkpoint.config)
    read = read_by_transformers(path, config)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    tied = {"lm_head.weight": read["model.embed_tokens.weight"]}
    model.load_state_dict({name: torch.tensor(x) for name, x in (tied | read).items()})
    target = from_checkpoint(checkpoint)
    tokens = target.tokenizer.encode((Path(__file__).parents[1] / "LICENSE").read_text())
    length, window = 600, checkpoint.config["sliding_window"]
    assert window < length - 20
    with torch.no_grad():
        expected = model(torch.tensor([tokens[:length]]), logits_to_keep=20).logits.numpy()[0]

    @jax.jit
    def last(target, tokens):
        zero, count = jnp.zeros(1, jnp.int32), jnp.full(1, length, jnp.int32)
        cache = target.init_cache(1, length)
        hidden, _, _ = target.extend(tokens, zero, cache, count=count)
        return target.unembed(hidden[0, -20:])

    found = last(target, jnp.asarray([tokens[:length]], jnp.int32))
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)
    decoder = specjax.Decoder(target, specjax.drafters.NGram(4))
    prompt = decoder.encode("The three primary colors are red,")[0]
    result = decoder.generate(prompt, max_new_tokens=24)
    print(result.texts[0])
    with torch.no_grad():
        theirs = model(torch.tensor([prompt + result.tokens[0]])).logits.argmax(-1)[0]
    assert result.tokens[0] == theirs[len(prompt) - 1 : -1].tolist()
