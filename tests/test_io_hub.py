"""The Hub, with its client replaced: what is asked for, and what its failures say."""

from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from specjax.io import hub
from specjax.io.hub import fetch_from_hub


@pytest.fixture
def snapshot(monkeypatch, tmp_path):
    """Let the client return a folder, and tell what it was asked for."""
    calls = []

    def download(*args, **kwargs):
        calls.append((args, kwargs))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    (tmp_path / "model.safetensors").touch()
    return calls


def test_no_pickle_and_no_code_is_asked_for(snapshot, tmp_path):
    assert fetch_from_hub("org/name", revision="v1") == tmp_path
    ((args, kwargs),) = snapshot
    assert args == ("org/name",)
    assert kwargs["revision"] == "v1"
    wanted = ["config.json", "tokenizer.json", "model-1-of-2.safetensors", "chat_template.jinja"]
    other = ["pytorch_model.bin", "modeling_evil.py", "m.gguf", "onnx/model.safetensors", "x.pt"]
    patterns = {name: kwargs[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(wanted + other, **patterns)) == wanted


def test_one_gguf_file_is_asked_for_alone(snapshot, tmp_path):
    fetch_from_hub("org/name/q4/m.gguf", cache_dir=tmp_path)
    ((args, kwargs),) = snapshot
    assert args == ("org/name", "q4/m.gguf")
    assert kwargs == {"revision": None, "cache_dir": tmp_path}


def test_a_repository_without_safetensors_says_how_to_name_a_file(snapshot, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"holds no safetensors.*'org/name/FILE\.gguf'"):
        fetch_from_hub("org/name")


RESPONSE: Any = SimpleNamespace(headers={}, request=None)  # whichever HTTP library is in use


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (errors.GatedRepoError("no", response=RESPONSE), "gated.*huggingface.co/org/name.*login"),
        (errors.RepositoryNotFoundError("no", response=RESPONSE), "no such repository"),
        (errors.RevisionNotFoundError("no", response=RESPONSE), "no such revision"),
        (errors.RemoteEntryNotFoundError("no", response=RESPONSE), "no such file"),
        (errors.LocalEntryNotFoundError("not cached"), "not cached.*`hf download org/name"),
        (errors.OfflineModeIsEnabled("offline"), "offline.*Without a connection"),
        (RuntimeError("refused"), "refused.*Without a connection"),
        (OSError(28, "No space left on device"), "No space left.*pass another cache_dir"),
    ],
)
def test_failures_say_what_to_do(monkeypatch, failure, advice):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", fail)
    with pytest.raises(OSError, match=f"'org/name' is neither here nor .* the Hub: .*{advice}"):
        fetch_from_hub("org/name")


def test_a_malformed_id_is_refused():
    with pytest.raises(ValueError, match="no Hub id"):
        fetch_from_hub("org/na--me")
