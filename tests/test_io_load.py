"""``load``: from every form of name to a model that decodes, without torch."""

import json
import math
import os
import subprocess
import sys
import textwrap
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from specjax.io import load
from specjax.io.load import from_checkpoint, open_checkpoint
from specjax.io.safetensors import SafetensorsCheckpoint
from specjax.models import DecoderLM

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 12,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


def random_tensors():
    """The tensors of that model under their Hugging Face names."""
    layer = {
        "input_layernorm": (16,),
        "self_attn.q_proj": (16, 16),
        "self_attn.k_proj": (8, 16),
        "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 16),
        "post_attention_layernorm": (16,),
        "mlp.gate_proj": (24, 16),
        "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24),
    }
    shapes = {"embed_tokens": (12, 16), "norm": (16,)}
    for index in range(2):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    rng = np.random.default_rng(0)
    return {
        f"model.{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.fixture
def folder(tmp_path):
    """A random llama of two layers with a tokenizer, as Hugging Face stores it."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_config(folder)
    save_file(random_tensors(), folder / "model.safetensors")
    vocabulary = {f"t{index}": index for index in range(12)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "t0"))
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write_config(folder, **changes):
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))


def greedy(model, prompt, length):
    """Decode greedily, one token a pass."""

    @jax.jit
    def step(model, tokens, start, cache):
        count = jnp.full_like(start, tokens.shape[1])
        hidden, cache, _ = model.extend(tokens, start, cache, count=count)
        return model.unembed(hidden[:, -1:]).argmax(-1).astype(jnp.int32), cache

    cache, tokens = model.init_cache(1, len(prompt) + length), []
    token, at = jnp.asarray([prompt], jnp.int32), 0
    for _ in range(length):
        token, cache = step(model, token, jnp.full(1, at, jnp.int32), cache)
        at = len(prompt) + len(tokens)
        tokens.append(int(token[0, 0]))
    return tokens


@pytest.mark.parametrize("convert", [str, lambda path: path], ids=["str", "Path"])
def test_a_folder(folder, convert):
    model = load(convert(folder))
    assert isinstance(model, DecoderLM)
    assert model.vocab_size == 12
    assert model.tokenizer is not None
    assert model.tokenizer.vocabulary["t3"] == 3
    stored = SafetensorsCheckpoint(folder).read("model.layers.1.mlp.up_proj.weight")
    np.testing.assert_array_equal(model.weights.layers[1].up.kernel, stored.T)
    assert len(greedy(model, [1, 2, 3], 3)) == 3


def test_weights_are_float32_on_cpu_and_what_was_asked_for(folder):
    default = {leaf.dtype for leaf in jax.tree.leaves(load(folder))}
    assert default == {jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)}
    for dtype in (jnp.bfloat16, "float16"):
        assert {leaf.dtype for leaf in jax.tree.leaves(load(folder, dtype=dtype))} == {
            jnp.dtype(dtype)
        }
    with pytest.raises(ValueError, match="dtype must be a floating type"):
        load(folder, dtype=jnp.int8)


def test_loading_twice_traces_once(folder):
    traces = []

    @jax.jit
    def call(model):
        traces.append(model)
        return model.embed(jnp.zeros((1, 1), jnp.int32))

    call(load(folder))
    call(load(folder))
    assert len(traces) == 1


def test_every_tensor_is_read_once(folder):
    elements = Counter()

    class Watched(SafetensorsCheckpoint):
        def read(self, name, index=()):
            part = super().read(name, index)
            elements[name] += part.size
            return part

    from_checkpoint(Watched(folder))
    whole = Watched(folder)
    assert elements == {name: math.prod(whole.shape(name)) for name in whole.names()}


@pytest.mark.parametrize(
    "name", ["smollm", "", "./missing", "/missing.gguf", "a/b/c", "org/name/x.bin", "~/missing"]
)
def test_what_is_nothing_gets_all_forms_listed(name):
    with pytest.raises(ValueError, match="smollm2-135m-instruct.*folder.*gguf file.*Hub id"):
        load(name)


def test_a_file_of_another_kind(folder):
    with pytest.raises(ValueError, match=r"config\.json is neither a folder nor a \.gguf file"):
        load(folder / "config.json")


def test_a_hub_id_goes_to_the_hub(folder, monkeypatch):
    asked = []

    def fetch(name, **where):
        asked.append((name, where))
        return folder

    monkeypatch.setattr("specjax.io.hub.fetch_from_hub", fetch)
    assert load("org/name", revision="v1", cache_dir="kept").vocab_size == 12
    assert asked == [("org/name", {"revision": "v1", "cache_dir": "kept"})]


def test_a_revision_is_for_the_hub(folder):
    for name in (folder, "smollm2-135m-instruct"):
        with pytest.raises(ValueError, match="revision='v1' is for Hub ids"):
            open_checkpoint(name, revision="v1")


@pytest.mark.parametrize("architectures", [["MambaForCausalLM"], [], None])
def test_an_unsupported_architecture_is_named(folder, architectures):
    write_config(folder, architectures=architectures)
    named = architectures[0] if architectures else "none named"
    with pytest.raises(ValueError, match=f"{named}.* is not supported"):
        load(folder)


def test_wrong_tensors_are_named(folder):
    write_config(folder, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"model\.layers\.2\..* is missing"):
        load(folder)
    write_config(folder, num_hidden_layers=10**12)
    with pytest.raises(ValueError, match="asks for 1000000000000 layers, .* only 20 tensors"):
        load(folder)
    write_config(folder, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"model\.layers\.1\..* has no place"):
        load(folder)
    write_config(folder, intermediate_size=25)
    with pytest.raises(ValueError, match=r"mlp\..* has shape \(.*\); the configuration wants"):
        load(folder)


def test_code_of_a_checkpoint_never_runs(folder, tmp_path):
    write_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    trace = tmp_path / "it_ran"
    (folder / "modeling_evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: ...\n")
    load(folder)
    assert not trace.exists()


def test_nothing_needs_torch(folder):
    program = textwrap.dedent(
        """
        import sys, warnings
        sys.modules["torch"] = None
        from specjax.io import Tokenizer, load
        model = load(sys.argv[1])
        template = "{{ messages[0].content }}"
        tokenizer = Tokenizer(model.tokenizer.backend, chat_template=template)
        print(tokenizer.apply_chat_template([{"role": "user", "content": "t5"}]))
        """
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[5]\n"
    assert "PyTorch" not in done.stderr


@pytest.mark.slow
def test_the_alias_answers():
    model = load("smollm2-135m-instruct")
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode("The capital of France is")
    assert model.tokenizer.decode(greedy(model, prompt, 2)) == " Paris."
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    answer = greedy(model, model.tokenizer.apply_chat_template(chat), 12)
    assert "Paris" in model.tokenizer.decode(answer)
