"""A local folder of safetensors: config.json, one file or a sharded index, tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.io.files import read_json, require_readable
from specjax.io.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Element types that are weights; integers and 8-bit floats come with scales this does not read."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsCheckpoint:
    """A folder as ``save_pretrained`` writes it; nothing is read before it is asked for.

    Entries of the configuration that name code (``auto_map``) are data here and never run.

    Raises:
        FileNotFoundError: the configuration, the weights or a shard is missing.
        ValueError: a file is truncated or corrupt, or the folder holds pickled weights only.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.json").exists():
            raise FileNotFoundError(
                f"{self.folder / 'config.json'} is missing; "
                "a model folder holds config.json beside its safetensors"
            )
        self.config = read_json(self.folder / "config.json")
        self._file_of = _locate(self.folder)
        self._open_files: dict[Path, Any] = {}

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._file_of.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor without reading it."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Read one tensor, or the part of it that ``index`` selects on the leading axes.

        Raises:
            ValueError: its element type is none of F64, F32, F16 and BF16, or it has fewer axes.
        """
        stored = self._slice(name)
        kind = stored.get_dtype()
        if kind not in DTYPES:
            raise ValueError(
                f"{self._file_of[name]}: tensor {name!r} has unsupported type {kind}; "
                f"supported are {', '.join(sorted(DTYPES))}"
            )
        if not index:
            return self._file(name).get_tensor(name)
        if len(index) > len(stored.get_shape()):
            raise ValueError(
                f"{self._file_of[name]}: tensor {name!r} of shape {tuple(stored.get_shape())} has "
                f"no {len(index)} axes to select from; fetch the file again"
            )
        ranges, steps = _ascending(index, stored.get_shape())
        return stored[ranges][steps]

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer from tokenizer.json, or return None where there is none."""
        if not (self.folder / "tokenizer.json").exists():
            return None
        return Tokenizer.from_folder(self.folder)

    def _file(self, name: str) -> Any:
        path = self._file_of[name]
        if path not in self._open_files:
            self._open_files[path] = _open(path)
        return self._open_files[path]

    def _slice(self, name: str) -> Any:
        try:
            return self._file(name).get_slice(name)
        except SafetensorError:
            raise ValueError(
                f"{self._file_of[name]} does not hold tensor {name!r} although {INDEX} says so; "
                "fetch the folder again"
            ) from None


def _ascending(
    index: tuple[slice, ...], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Split a selection in ranges, which the library reads, and steps within what was read."""
    ranges, steps = [], []
    for part, size in zip(index, shape, strict=False):
        wanted = range(size)[part]
        first, last = (min(wanted), max(wanted)) if wanted else (0, -1)
        ranges.append(slice(first, last + 1))
        steps.append(slice(None, None, wanted.step) if wanted.step else slice(None))
    return tuple(ranges), tuple(steps)


def _locate(folder: Path) -> dict[str, Path]:
    """Map every tensor name to its file, and open each file once to see that it is whole."""
    if (folder / INDEX).exists():
        return _locate_shards(folder)
    if not (folder / WEIGHTS).exists():
        raise _no_weights(folder)
    return dict.fromkeys(_open(folder / WEIGHTS).keys(), folder / WEIGHTS)


def _locate_shards(folder: Path) -> dict[str, Path]:
    shard_of = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(x, str) for x in shard_of.values()):
        raise ValueError(f"{folder / INDEX} has no 'weight_map'; fetch it again")
    shards = sorted(set(shard_of.values()))
    # A shard is a plain file of this folder: an index must not point anywhere else.
    if outside := [shard for shard in shards if Path(shard).name != shard]:
        raise ValueError(f"{folder / INDEX} names {outside[0]!r}, which is not a file beside it")
    if missing := [shard for shard in shards if not (folder / shard).exists()]:
        raise FileNotFoundError(
            f"{folder / INDEX} names {', '.join(missing)}, missing from the folder; fetch the rest"
        )
    for shard in shards:
        _open(folder / shard)
    return {name: folder / shard for name, shard in shard_of.items()}


def _open(path: Path) -> Any:
    require_readable(path)
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is truncated or corrupt ({error}); delete it and fetch it again"
        ) from error


def _no_weights(folder: Path) -> Exception:
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        return ValueError(
            f"{folder} holds pickled weights only ({pickled[0]}), which can run code and are never "
            "loaded; save it as safetensors: model.save_pretrained(folder, safe_serialization=True)"
        )
    return FileNotFoundError(f"{folder} holds neither {WEIGHTS} nor {INDEX}; check the path")
