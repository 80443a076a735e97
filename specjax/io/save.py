"""``save``: a model and its tokenizer in a folder, for ``load`` and for transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tqdm.auto import tqdm

from specjax.io.files import write_json
from specjax.io.orbax import save_leaves
from specjax.io.safetensors import INDEX, WEIGHTS
from specjax.io.tokenizer import Tokenizer
from specjax.models import DecoderLM, Table, describe
from specjax.models.kv_copies import without_copies
from specjax.models.layers import Weights, unpack
from specjax.protocols import Target

FORMATS = ("safetensors", "orbax")

MAX_SHARD_BYTES = 2 * 10**9
"""Of one safetensors file: a shard, and the tensor after it, are what writing holds in memory."""


def save(
    target: Target,
    folder: str | os.PathLike[str],
    *,
    format: str = "safetensors",
    max_shard_bytes: int | None = None,
) -> None:
    """Write a model with its config.json and its tokenizer, whole or not at all.

    A folder of safetensors is what transformers' ``from_pretrained`` reads: tensors have the
    names, the order and the fusions that the model was published with. Kernels in int8 are
    written as the floats that they stand for. Orbax keeps them as they are, and lets each device
    of a mesh read its own slices.

    Args:
        target: a model that ``load`` made, on one device or on a mesh of this process.
        folder: where to; it must be new or empty. All is written to a folder beside it, which is
            renamed at the end (a process that is killed leaves that one, ``.NAME-...``).
        format: "safetensors" or "orbax".
        max_shard_bytes: of one safetensors file; 2 GB if None.

    Raises:
        ValueError: ``folder`` holds something, ``target`` did not come from a checkpoint or has
            been changed since, or an argument is out of range.
        OSError: the folder is full or forbidden.
    """
    folder = require_free(folder)
    if format not in FORMATS:
        raise ValueError(f"format: must be 'safetensors' or 'orbax', got {format!r}")
    max_shard_bytes = _shard_bytes(format, max_shard_bytes)
    model, table, tokenizer = _parts(target)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.weights))
    with _whole(folder, size) as unfinished:
        if format == "orbax":
            leaves = unpack(model.weights)
            leaves = {path: without_copies(model.config, path, x) for path, x in leaves.items()}
            save_leaves(leaves, unfinished)
            dtype = model.weights.norm.scale.dtype
        else:
            dtype = _write_tensors(table, model.weights, unfinished, max_shard_bytes)
        write_json(unfinished / "config.json", _config(table, dtype))
        if tokenizer is not None:
            tokenizer.save(unfinished)


def require_free(folder: str | os.PathLike[str]) -> Path:
    """Return the folder's path if nothing would be lost by writing there.

    Raises:
        ValueError: there is a file of that name, or the folder is not empty.
    """
    path = Path(os.path.realpath(Path(folder).expanduser()))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "is not empty" if path.is_dir() else "is a file"
        raise ValueError(f"folder: {path} {what}; name a new one, or clear it first")
    return path


def _shard_bytes(format: str, given: int | None) -> int:
    if given is None:
        return MAX_SHARD_BYTES
    if format != "safetensors":
        raise ValueError(f"max_shard_bytes: goes with safetensors, not with {format}; drop it")
    if given < 1:
        raise ValueError(f"max_shard_bytes: must be positive, got {given}")
    return given


def _parts(target: Any) -> tuple[DecoderLM, Table, Tokenizer | None]:
    """The model, where its weights go in a checkpoint, and its tokenizer, if all can be written."""
    if not isinstance(target, DecoderLM):
        raise ValueError(
            f"target: a {type(target).__name__} has no form on disk; save what specjax.load made"
        )
    if target.config.published is None:
        raise ValueError(
            "target: its configuration was made by hand and has no config.json; put one that "
            "describes it there: dataclasses.replace(target.config, published={...})"
        )
    table = describe(target.config.published)
    copies = dataclasses.replace(table.config, kv_copies=target.config.kv_copies)
    table = dataclasses.replace(table, config=copies)
    if table.config != target.config:
        raise ValueError(
            "target: its configuration is not what its config.json (config.published) says; "
            "change both"
        )
    if not isinstance(target.tokenizer, Tokenizer | None):
        raise ValueError(
            f"target: its tokenizer, a {type(target.tokenizer).__name__}, has no form on disk; "
            "save target.replace(tokenizer=None)"
        )
    leaves = jax.tree.leaves(target.weights)
    if not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
        raise ValueError(
            "target: parts of its weights are on devices of other processes; load it in one "
            "process and save it there"
        )
    return target, table, target.tokenizer


def _write_tensors(table: Table, weights: Weights, folder: Path, max_bytes: int) -> jnp.dtype:
    """Write shards, and an index if there are several; return the widest type written."""
    watch = partial(tqdm, desc="save", unit="tensor", disable=None, leave=False)
    shard_of, total, dtypes = {}, 0, set()
    tensors = iter(watch(table.write(weights), total=len(table.stored())))
    for number, shard in enumerate(_shards(tensors, max_bytes), 1):
        path = folder / f"model-{number:05}.safetensors"
        save_file(shard, path, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(shard, path)
        total += sum(values.nbytes for values in shard.values())
        dtypes |= {values.dtype for values in shard.values()}
    _name_shards(folder, shard_of, total)
    return max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)


def _shards(
    tensors: Iterator[tuple[str, np.ndarray]], max_bytes: int
) -> Iterator[dict[str, np.ndarray]]:
    """Gather tensors to at most ``max_bytes``; a larger one is alone in its shard."""
    shard: dict[str, np.ndarray] = {}
    held = 0
    for name, values in tensors:
        if shard and held + values.nbytes > max_bytes:
            yield shard
            shard, held = {}, 0
        shard[name] = values
        held += values.nbytes
    yield shard


def _name_shards(folder: Path, shard_of: dict[str, Path], total: int) -> None:
    """Give the shards their final names, which say how many there are."""
    paths = sorted(set(shard_of.values()))
    if len(paths) == 1:
        paths[0].rename(folder / WEIGHTS)
        return
    final = {path: f"{path.stem}-of-{len(paths):05}.safetensors" for path in paths}
    for path, name in final.items():
        path.rename(folder / name)
    weight_map = {name: final[path] for name, path in shard_of.items()}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _config(table: Table, dtype: jnp.dtype) -> dict[str, Any]:
    """The published config.json, with the type of what is written."""
    published = dict(table.config.published or {})
    published.pop("torch_dtype", None)  # the older name of the same field
    return published | {"dtype": jnp.dtype(dtype).name}


@contextlib.contextmanager
def _whole(folder: Path, size: int) -> Iterator[Path]:
    """Give a folder beside ``folder`` that takes its place when the block has ended well."""
    with _named_in_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free < size:
            raise OSError(errno.ENOSPC, f"{size} bytes are needed")
        beside = tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)
        with beside as private:
            unfinished = Path(private) / folder.name  # with the permissions of any new folder
            unfinished.mkdir()
            yield unfinished
            unfinished.rename(folder)


@contextlib.contextmanager
def _named_in_errors(folder: Path) -> Iterator[None]:
    """Say which folder is full or forbidden, and what to do about it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        if (code := _system_error(error)) is None:
            raise
        if code in (errno.ENOSPC, errno.EDQUOT):
            what = "the disk is full; free some space there or name another folder"
        elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
            what = "this user may not; change the permissions or name another folder"
        else:
            what = os.strerror(code)
        raise OSError(code, f"{folder} cannot be written: {what}") from error


def _system_error(error: Exception) -> int | None:
    """The system's number for what went wrong, which the libraries hide in their texts."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os[ _]error(?: |_code=')(\d+)", str(error))
    return None if found is None else int(found[1])
