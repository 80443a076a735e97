"""A GGUF file again, with each of its tensors in float32."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
from gguf import GGUFReader, ReaderTensor

_FLOAT32 = struct.pack("<I", gguf.GGMLQuantizationType.F32)


def write_float32(source: Path, target: Path) -> None:
    """Write ``source`` dequantised, one tensor at a time; its metadata is copied byte by byte.

    The file is four bytes a weight. Some keys of the metadata, such as ``general.file_type``,
    still describe the source; llama.cpp goes by the types of the tensors.
    """
    reader = GGUFReader(source)
    with target.open("wb") as file:
        file.write(_header(reader))
        for tensor in reader.tensors:
            file.write(bytes(-file.tell() % reader.alignment))
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            file.write(values.astype("<f4", copy=False).tobytes())


def _header(reader: GGUFReader) -> bytes:
    """All before the tensors: what is before the tensor table, and a table of its own."""
    table_start = min(tensor.field.offset for tensor in reader.tensors)
    lines, offset = [], 0
    for tensor in reader.tensors:
        lines.append(_line(tensor, offset))
        size = 4 * int(tensor.n_elements)
        offset += size + -size % reader.alignment
    return reader.data[:table_start].tobytes() + b"".join(lines)


def _line(tensor: ReaderTensor, offset: int) -> bytes:
    """One line of the table: name and shape as they are, then the type and the place."""
    name_and_shape = b"".join(part.tobytes() for part in tensor.field.parts[:4])
    return name_and_shape + _FLOAT32 + struct.pack("<Q", offset)
