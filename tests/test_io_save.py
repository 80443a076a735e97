"""``save``: what a model was loaded from, written again, whole or not at all."""

import dataclasses
import errno
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_gguf
from safetensors import SafetensorError
from tiny_folder import TEMPLATE, write_tiny_folder
from toy_tokenizer import ToyTokenizer

import specjax
from specjax.io import Tokenizer
from specjax.io.safetensors import SafetensorsCheckpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from published_models import FAMILIES, tiny_folder  # noqa: E402

TOKENS = np.random.default_rng(0).integers(0, 101, (2, 30))


@pytest.fixture
def source(tmp_path):
    """A folder with a tokenizer."""
    return write_tiny_folder(tmp_path / "source")


@pytest.fixture
def target(source):
    return specjax.load(source)


def tensors_of(folder):
    checkpoint = SafetensorsCheckpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def require_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_comes_back_tensor_by_tensor(name, tmp_path):
    model = tiny_folder(tmp_path / "source", name)
    target = specjax.load(tmp_path / "source")
    specjax.save(target, tmp_path / "saved")
    expected = tensors_of(tmp_path / "source")
    if "sees" in name:  # the text model alone was read
        prefix = "language_model."
        expected = {x[len(prefix) :]: y for x, y in expected.items() if x.startswith(prefix)}
    require_equal(tensors_of(tmp_path / "saved"), expected)
    assert specjax.load(tmp_path / "saved").config == target.config
    if name in ("llama", "phi3", "qwen3_moe", "gemma3 that sees"):
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        np.testing.assert_array_equal(logits(again), logits(model))


def test_a_gguf_file_becomes_the_folder_it_was_made_from(tmp_path):
    model = tiny_folder(tmp_path / "source", "llama")
    path = tiny_gguf.write_gguf(tmp_path / "m.gguf", "llama", model.config, tmp_path / "source")
    target = specjax.load(path)
    specjax.save(target.replace(tokenizer=None), tmp_path / "saved")
    require_equal(tensors_of(tmp_path / "saved"), tensors_of(tmp_path / "source"))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(logits(again), logits(model), atol=1e-5, rtol=0)


def test_the_tokenizer_comes_back_equal_and_transformers_reads_it(target, tmp_path):
    tokenizer = target.tokenizer
    stops = Tokenizer(
        tokenizer.backend,
        chat_template=TEMPLATE + "\r\n",
        special_tokens={"eos_token": "<|im_end|>", "pad_token": "a"},
        stop_ids=[3, 7],
    )
    specjax.save(target.replace(tokenizer=stops), tmp_path / "saved")
    assert specjax.load(tmp_path / "saved").tokenizer == stops
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    text, chat = "aba naïve\n", [{"role": "user", "content": "aba"}]
    assert theirs(text)["input_ids"] == stops.encode(text)
    assert theirs.chat_template == stops.chat_template
    asked = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert asked == stops.render_chat(chat)
    assert (theirs.eos_token, theirs.pad_token) == ("<|im_end|>", "a")
    ends = transformers.GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id
    assert tuple(ends) == stops.stop_ids == (3, 7, tokenizer.vocabulary["<|im_end|>"])


def test_shards_hold_no_more_than_was_allowed(source, target, tmp_path):
    specjax.save(target, tmp_path / "saved", max_shard_bytes=3000)
    shards = sorted((tmp_path / "saved").glob("*.safetensors"))
    assert shards[-1].name == f"model-{len(shards):05}-of-{len(shards):05}.safetensors"
    index = json.loads((tmp_path / "saved" / "model.safetensors.index.json").read_text())
    expected, size_of = tensors_of(source), dict.fromkeys((path.name for path in shards), 0)
    for name, shard in index["weight_map"].items():
        size_of[shard] += expected[name].nbytes
    held = Counter(index["weight_map"].values())
    assert len(shards) > 2
    assert all(size <= 3000 or held[shard] == 1 for shard, size in size_of.items())
    assert max(held.values()) > 1
    assert index["metadata"]["total_size"] == sum(size_of.values())
    require_equal(tensors_of(tmp_path / "saved"), expected)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(again.model.norm.weight.detach(), expected["model.norm.weight"])


def test_what_is_written_has_the_dtype_of_the_weights(source, tmp_path):
    specjax.save(specjax.load(source, dtype=jnp.bfloat16), tmp_path / "saved")
    assert {x.dtype for x in tensors_of(tmp_path / "saved").values()} == {jnp.dtype(jnp.bfloat16)}
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["dtype"], config["architectures"]) == ("bfloat16", ["LlamaForCausalLM"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert model.dtype == torch.bfloat16


def test_eight_bits_are_written_as_the_floats_that_they_stand_for(source, tmp_path):
    narrow = specjax.load(source, dtype=jnp.bfloat16, quantize="int8")
    specjax.save(narrow, tmp_path / "saved")
    found = tensors_of(tmp_path / "saved")
    head = narrow.weights.head
    expected = np.asarray(head.weight, np.float32) * np.asarray(head.scale)[:, None]
    np.testing.assert_array_equal(found["model.embed_tokens.weight"], expected)
    assert found["model.norm.weight"].dtype == jnp.bfloat16
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "float32"
    again = specjax.load(tmp_path / "saved", quantize="int8")
    np.testing.assert_array_equal(again.weights.head.weight, head.weight)


def test_an_empty_folder_is_filled_and_anything_else_refused(target, tmp_path):
    folder = tmp_path / "deep" / "saved"
    folder.mkdir(parents=True)
    specjax.save(target, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for name in (folder, folder / "config.json"):
        with pytest.raises(ValueError, match=f"folder: {name} (is not empty|is a file)"):
            specjax.save(target, name)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_what_cannot_be_written_is_refused_before_anything_is(target, tmp_path):
    folder, config = tmp_path / "saved", target.config
    by_hand = dataclasses.replace(config, published=None)
    changed = dataclasses.replace(config, norm_eps=0.5, published=config.published)
    for wrong, options, message in [
        (
            target.replace(config=by_hand),
            {},
            r"by hand.*replace\(target\.config, published=",
        ),
        (target.replace(config=changed), {}, "target: its configuration is not what"),
        (
            target.replace(tokenizer=ToyTokenizer([])),
            {},
            r"ToyTokenizer.*replace\(tokenizer=None\)",
        ),
        (torch, {}, "target: a module has no form on disk"),
        (target, {"format": "gguf"}, "format: must be 'safetensors' or 'orbax', got 'gguf'"),
        (target, {"max_shard_bytes": 0}, "max_shard_bytes: must be positive, got 0"),
        (target, {"format": "orbax", "max_shard_bytes": 9}, "max_shard_bytes: .* not with orbax"),
    ]:
        with pytest.raises(ValueError, match=message):
            specjax.save(wrong, folder, **options)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "no"), "disk is full"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "disk is full"),
        (PermissionError(errno.EACCES, "no"), "user may not"),
        (OSError(errno.EIO, "no"), "Input/output error"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_write_that_fails_names_the_folder_and_leaves_nothing(
    target, tmp_path, monkeypatch, error, says
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(sys.modules["specjax.io.save"], "save_file", fail)
    message = f"{tmp_path / 'saved'} cannot be written: .*{says}"
    with pytest.raises(OSError, match=message):
        specjax.save(target, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_too_little_space_is_seen_before_anything_is_written(target, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(OSError, match="disk is full") as caught:
        specjax.save(target, tmp_path / "saved", format="orbax")
    assert caught.value.errno == errno.ENOSPC


def test_an_interrupted_save_leaves_nothing(target, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        specjax.save(target, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
