"""``specjax convert``, in process, with a random model in a folder."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_folder import write_random_folder
from tiny_folder import write_tiny_folder

import specjax
from specjax.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "source")


@pytest.fixture
def run(source, tmp_path, capsys):
    """Run ``specjax convert SOURCE FOLDER ...`` and return its status and both outputs."""

    def call(*args, name=source, folder=tmp_path / "out"):
        status = main(["convert", str(name), str(folder), *args])
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("form", ["safetensors", "orbax"])
def test_there_and_back(run, source, tmp_path, form):
    status, out, err = run("--to", form)
    assert (status, out) == (0, "")
    lines = err.splitlines()
    assert lines[:2] == [f"loading {source}", f"writing {tmp_path / 'out'}"]
    num = sum(path.is_file() for path in (tmp_path / "out").rglob("*"))
    assert lines[-1].startswith(f"wrote {num} files, ")
    written = "model.safetensors" if form == "safetensors" else "orbax/"
    assert any(line.endswith(f" MB  {written}") for line in lines)
    assert run(name=tmp_path / "out", folder=tmp_path / "back")[0] == 0
    expected, found = specjax.load(source), specjax.load(tmp_path / "back")
    assert (found.config, found.tokenizer) == (expected.config, expected.tokenizer)
    jax.tree.map(np.testing.assert_array_equal, found.weights, expected.weights)


def test_json_says_what_was_written(run, tmp_path):
    status, out, err = run("--json", "--dtype", "float16")
    answer = json.loads(out)
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert status == 0
    assert out.count("\n") == 1
    assert "wrote" not in err
    assert answer.pop("seconds") > 0
    assert answer == {
        "folder": str(tmp_path / "out"),
        "format": "safetensors",
        "dtype": "float16",
        "files": dict(sorted(files.items())),
        "bytes": sum(files.values()),
    }
    assert specjax.load(tmp_path / "out", dtype=jnp.float16).weights.norm.scale.dtype == jnp.float16


@pytest.mark.parametrize("form", ["safetensors", "orbax"])
def test_the_source_decides_the_type(run, source, tmp_path, form):
    specjax.save(specjax.load(source, dtype=jnp.bfloat16), tmp_path / "narrow", format=form)
    for name, dtype in [(source, "float32"), (tmp_path / "narrow", "bfloat16")]:
        folder = tmp_path / dtype
        assert json.loads(run("--json", name=name, folder=folder)[1])["dtype"] == dtype
        assert json.loads((folder / "config.json").read_text())["dtype"] == dtype


def test_eight_bits_are_kept_by_orbax(run, source, tmp_path):
    assert run("--to", "orbax", "--quantize", "int8")[0] == 0
    expected, found = specjax.load(source, quantize="int8"), specjax.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, found.weights, expected.weights)
    assert found.weights.head.weight.dtype == jnp.int8


def test_a_bad_argument_is_named_and_nothing_is_lost(run, source, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for args, where, named in [
        (["--to", "gguf"], {}, "--to"),
        (["--dtype", "int8"], {}, "--dtype"),
        (["--quantize", "int8"], {}, "--quantize: int8 is kept by orbax only; add --to orbax"),
        ([], {"name": "nothing"}, "no model 'nothing'"),
        ([], {"folder": tmp_path / "full"}, f"{tmp_path / 'full'} is not empty"),
        ([], {"folder": source}, f"{source} is not empty"),
    ]:
        status, out, err = run(*args, **where)
        assert (status, out) == (2, "")
        assert err.splitlines()[-1].startswith("error: ")
        assert named in err.splitlines()[-1]
        assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_disk_that_gives_out_is_status_1(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["specjax.io.save"], "save_file", fail)
    status, out, err = run()
    assert (status, out) == (1, "")
    assert f"{tmp_path / 'out'} cannot be written: the disk is full" in err.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_a_model_without_a_tokenizer(run, tmp_path):
    write_random_folder(tmp_path / "source")
    assert run(name=tmp_path / "source")[0] == 0
    assert specjax.load(tmp_path / "out").tokenizer is None
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "model.safetensors"]
