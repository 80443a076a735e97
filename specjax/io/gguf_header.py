"""The header of a GGUF file, metadata and tensor table, read without trusting any number in it.

Every length is compared with the bytes that are left before anything of that length is made, so
a hostile file costs no more than its own size. The ``gguf`` package's reader makes several arrays
of every single token and item, which takes a vocabulary of 262,144 tokens a quarter of a minute.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quantization

from specjax.io.files import require_readable

QUANTIZATIONS = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)

_VERSIONS = (2, 3)
_MAX_DIMS = 4  # of ggml itself
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
    **{6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A stored tensor: ``blocks`` are its bytes, u8[*shape[:-1], bytes of a row], unread so far."""

    name: str
    shape: tuple[int, ...]
    kind: Quantization
    blocks: np.ndarray


def read_header(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Return metadata and tensors; arrays of numbers are numpy's, those of strings are lists.

    Raises:
        FileNotFoundError, PermissionError: there is no such file, or it may not be read.
        ValueError: it is truncated, corrupt or no GGUF file, or has an unsupported quantisation.
    """
    require_readable(path)
    try:
        header = _Cursor(np.memmap(path, np.uint8, "r").view(np.ndarray))
        num_tensors = _read_preamble(header)
        metadata = dict(_pairs(header))
        entries = [_Entry.read(header) for _ in range(num_tensors)]
        data = _data_section(header, metadata.get("general.alignment", 32))
    except (ValueError, OverflowError) as error:
        raise _corrupt(path, error) from error
    for entry in entries:
        _require_known_quantization(path, entry)
    try:
        return metadata, _tensors(entries, data)
    except (ValueError, OverflowError) as error:
        raise _corrupt(path, error) from error


class _Cursor:
    """A place in the file that moves over what is read."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.at, self.num_keys = data, 0, 0

    def take(self, size: int) -> np.ndarray:
        end = self.at + size
        if end > self.data.size:
            raise ValueError(f"byte {end} is wanted of {self.data.size}")
        self.at, start = end, self.at
        return self.data[start:end]

    def number(self, code: str) -> int:
        return struct.unpack(code, self.take(struct.calcsize(code)).tobytes())[0]

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """Read strings, of which a vocabulary has hundreds of thousands: so in one loop."""
        found, at, data = [], self.at, self.data.data
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > len(data):
                raise ValueError(f"byte {at} is wanted of {len(data)}")
            found.append(str(data[start:at], "utf-8"))
        self.at = at
        return found


def _read_preamble(header: _Cursor) -> int:
    """Check what kind of file it is and return the number of its tensors."""
    if (magic := header.take(4).tobytes()) != b"GGUF":
        raise ValueError(f"its magic is {magic!r}")
    version = header.number("<I")
    if version not in _VERSIONS:
        endian = " of a big-endian machine" if version & 0xFFFF == 0 else ""
        raise ValueError(f"its version is {version}{endian}; read are {_VERSIONS}")
    num_tensors = header.number("<Q")
    header.num_keys = header.number("<Q")
    return num_tensors


def _pairs(header: _Cursor) -> Iterator[tuple[str, Any]]:
    seen = set()
    for _ in range(header.num_keys):
        key = header.text()
        if key in seen:
            raise ValueError(f"key {key!r} comes twice")
        seen.add(key)
        yield key, _value(header, header.number("<I"))


def _value(header: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return header.text()
    if kind == _ARRAY:
        of, count = header.number("<I"), header.number("<Q")
        if of == _STRING:
            return header.texts(count)
        return header.take(count * _scalar(of).itemsize).view(_scalar(of))
    value = header.take(_scalar(kind).itemsize).view(_scalar(kind))[0]
    # A float32 was written as a decimal, such as 1e-6, and is taken for that again.
    return float(str(value)) if kind == _FLOAT32 else value.item()


def _scalar(kind: int) -> np.dtype:
    if kind not in _SCALARS:
        raise ValueError(f"{kind} is no type of a value, or one within an array in an array")
    return np.dtype(_SCALARS[kind])


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A line of the tensor table."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @classmethod
    def read(cls, header: _Cursor) -> _Entry:
        name, num_dims = header.text(), header.number("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise ValueError(f"tensor {name!r} has {num_dims} axes")
        shape = tuple(header.number("<Q") for _ in range(num_dims))[::-1]  # fastest first there
        if 0 in shape:
            raise ValueError(f"tensor {name!r} of shape {shape} is empty")
        return cls(name, shape, header.number("<I"), header.number("<Q"))


def _data_section(header: _Cursor, alignment: Any) -> np.ndarray:
    """What follows the header, from the next multiple of ``alignment`` on."""
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    return header.data[-(-header.at // alignment) * alignment :]


def _tensors(entries: list[_Entry], data: np.ndarray) -> list[Tensor]:
    tensors = [_tensor(entry, data) for entry in entries]
    # Tensors that share bytes would let a small file stand for any amount of weights.
    if sum(tensor.blocks.size for tensor in tensors) > data.size:
        raise ValueError("its tensors overlap")
    return tensors


def _tensor(entry: _Entry, data: np.ndarray) -> Tensor:
    kind = Quantization(entry.kind)
    *leading, width = entry.shape
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if width % per_block:
        raise ValueError(
            f"tensor {entry.name!r} has rows of {width}, no multiple of the {per_block} values "
            f"of a {kind.name} block"
        )
    row_bytes = width // per_block * block_bytes
    end = entry.offset + math.prod(leading) * row_bytes
    if end > data.size:
        raise ValueError(f"tensor {entry.name!r} ends at byte {end} of {data.size}")
    blocks = data[entry.offset : end].reshape(*leading, row_bytes)
    return Tensor(entry.name, entry.shape, kind, blocks)


def _require_known_quantization(path: Path, entry: _Entry) -> None:
    known = {Quantization[name].value: name for name in QUANTIZATIONS}
    if entry.kind in known:
        return
    all_kinds = {kind.value: kind.name for kind in Quantization}
    raise ValueError(
        f"{path}: tensor {entry.name!r} has unsupported quantisation "
        f"{all_kinds.get(entry.kind, entry.kind)}; supported are {', '.join(QUANTIZATIONS)}"
    )


def _corrupt(path: Path, reason: Exception) -> ValueError:
    return ValueError(
        f"{path} is truncated or corrupt, or no GGUF file ({reason}); delete it and fetch it again"
    )
