"""Folders of safetensors: one file, shards, and what is missing or broken."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from specjax.io import Checkpoint
from specjax.io.safetensors import SafetensorsCheckpoint


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {
        "model.norm.weight": rng.normal(size=8).astype(np.float32),
        "lm_head.weight": rng.normal(size=(5, 8)).astype(ml_dtypes.bfloat16),
        "model.embed_tokens.weight": rng.normal(size=(5, 8)).astype(np.float16),
    }


@pytest.fixture
def folder(tmp_path, tensors):
    """A folder with all tensors in one file."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path, tensors):
    """The same in a shard for each tensor."""
    (tmp_path / "config.json").write_text("{}")
    shard_of = {name: f"model-{i}-of-3.safetensors" for i, name in enumerate(tensors)}
    for name, shard in shard_of.items():
        save_file({name: tensors[name]}, tmp_path / shard)
    write_index(tmp_path, shard_of)
    return tmp_path


def write_index(folder, shard_of):
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_holds(checkpoint, tensors):
    assert set(checkpoint.names()) == set(tensors)
    for name, values in tensors.items():
        assert checkpoint.shape(name) == values.shape
        read = checkpoint.read(name)
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)


def test_one_file(folder, tensors):
    checkpoint = SafetensorsCheckpoint(folder)
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.tokenizer() is None
    assert_holds(checkpoint, tensors)


def test_parts_are_those_of_the_whole(folder, tensors):
    checkpoint = SafetensorsCheckpoint(folder)
    parts = [slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(4, 0, -2), slice(9, 1)]
    for name, values in tensors.items():
        for part in parts:
            read = checkpoint.read(name, (part,))
            assert read.dtype == values.dtype
            np.testing.assert_array_equal(read, values[part])
            if values.ndim > 1:
                index = (slice(-3, None), part)
                np.testing.assert_array_equal(checkpoint.read(name, index), values[index])


def test_shards(sharded, tensors):
    assert_holds(SafetensorsCheckpoint(sharded), tensors)


def test_missing_configuration(folder):
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00"])
def test_broken_configuration(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("kept", [0, 5, 30, -3])
def test_truncated_weights(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or corrupt"):
        SafetensorsCheckpoint(folder)


def test_corrupt_header(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\xff" * 20 + content[28:])
    with pytest.raises(ValueError, match="truncated or corrupt"):
        SafetensorsCheckpoint(folder)


def test_a_truncated_shard_is_found_before_anything_is_read(sharded):
    path = sharded / "model-1-of-3.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"model-1-of-3\.safetensors is truncated"):
        SafetensorsCheckpoint(sharded)


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-2-of-3.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names model-2-of-3\.safetensors, missing"):
        SafetensorsCheckpoint(sharded)


def test_an_index_may_not_point_outside_its_folder(sharded):
    write_index(sharded, {"lm_head.weight": "../secret.safetensors"})
    with pytest.raises(ValueError, match="not a file beside it"):
        SafetensorsCheckpoint(sharded)


def test_an_index_without_map_is_refused(sharded):
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="weight_map"):
        SafetensorsCheckpoint(sharded)


def test_an_index_that_lies_is_refused(sharded):
    write_index(sharded, {"model.other.weight": "model-0-of-3.safetensors"})
    with pytest.raises(ValueError, match=r"does not hold tensor 'model\.other\.weight'"):
        SafetensorsCheckpoint(sharded).shape("model.other.weight")


def test_pickles_are_never_loaded(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled weights only.*safe_serialization"):
        SafetensorsCheckpoint(folder)


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor"):
        SafetensorsCheckpoint(folder)


def test_an_unsupported_element_type_is_named(folder):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    content = struct.pack("<Q", len(header)) + header + b"\x00\x00"
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="tensor 'w' has unsupported type F8_E4M3"):
        SafetensorsCheckpoint(folder).read("w")


def test_a_forbidden_file_is_named(folder, monkeypatch):
    def forbid(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", forbid)
    with pytest.raises(PermissionError, match=r"config\.json may not be read"):
        SafetensorsCheckpoint(folder)
