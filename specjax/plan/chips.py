"""What chips can do, as their makers publish it, and how many of them a topology names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device. Bytes are 8 bits, rates are per second; every figure is a peak.

    ``memory`` is what a program may use, ``bandwidth`` that of the memory. ``operations`` maps a
    dtype to multiplications and additions a second. ``link_bandwidth`` is what a device sends to
    the others (half of what is published as bidirectional), ``hop_seconds`` what each hop adds.
    """

    name: str
    memory: float
    bandwidth: float
    operations: Mapping[str, float]
    link_bandwidth: float = math.inf
    hop_seconds: float = 0.0
    source: str = ""

    def peak(self, dtype: str) -> float:
        """Operations a second in products of ``dtype``.

        Raises:
            ValueError: none are published.
        """
        if dtype not in self.operations:
            raise ValueError(
                f"dtype: {self.name} has no published rate for {dtype}; "
                f"there are {', '.join(self.operations)}"
            )
        return self.operations[dtype]

    def ridge(self, dtype: str) -> float:
        """Operations a byte from which on arithmetic, not memory, takes the time.

        >>> round(CHIPS["v5e"].ridge("bfloat16"))
        241
        """
        return self.peak(dtype) / self.bandwidth


GIB = 2**30

HOP = 1e-6
"""Seconds a hop between neighbours takes: an assumption, since no maker publishes it."""


def _tpu(name, memory, bandwidth, bf16, int8, links, source) -> Chip:
    # Products of float32 run as six of bfloat16 at the highest precision, as one by default.
    rates = {"bfloat16": bf16, "float32": bf16, "float16": bf16, "int8": int8}
    return Chip(name, memory, bandwidth, rates, links, HOP, source)


def _gpu(name, memory, bandwidth, bf16, int8, float32, links, source) -> Chip:
    rates = {"bfloat16": bf16, "float16": bf16, "int8": int8, "float32": float32}
    return Chip(name, memory, bandwidth, rates, links, HOP, source)


CHIPS: Mapping[str, Chip] = {
    "v4": _tpu("TPU v4", 30.75 * GIB, 1.2e12, 275e12, 275e12, 300e9,
               "https://cloud.google.com/tpu/docs/v4"),
    "v5e": _tpu("TPU v5e", 15.75 * GIB, 819e9, 197e12, 393e12, 200e9,
                "https://cloud.google.com/tpu/docs/v5e"),
    "v5p": _tpu("TPU v5p", 95.74 * GIB, 2765e9, 459e12, 918e12, 600e9,
                "https://cloud.google.com/tpu/docs/v5p"),
    "v6e": _tpu("TPU v6e", 31.25 * GIB, 1638e9, 918e12, 1836e12, 400e9,
                "https://cloud.google.com/tpu/docs/v6e"),
    "a100": _gpu("NVIDIA A100 SXM 80GB", 80e9, 2039e9, 312e12, 624e12, 156e12, 300e9,
                 "https://www.nvidia.com/en-us/data-center/a100/"),
    "h100": _gpu("NVIDIA H100 SXM", 80e9, 3350e9, 989.5e12, 1979e12, 494.7e12, 450e9,
                 "https://www.nvidia.com/en-us/data-center/h100/"),
    "h200": _gpu("NVIDIA H200 SXM", 141e9, 4800e9, 989.5e12, 1979e12, 494.7e12, 450e9,
                 "https://www.nvidia.com/en-us/data-center/h200/"),
}  # fmt: skip
"""Dense rates; NVIDIA's sheets print twice that, with sparsity. float32 on NVIDIA is TF32.

A TPU's memory is what its compiler (libtpu 0.0.42) leaves to a program. A TPU v4 or v5p chip has
two cores that appear as one device.
"""

_SHAPE = re.compile(r"\d+(x\d+)*")


@dataclasses.dataclass(frozen=True)
class Machine:
    """So many devices of a kind, in a grid of ``shape``.

    ``is_tpu`` says that programs can be compiled for it without having it.
    """

    chip: Chip
    shape: tuple[int, ...]
    is_tpu: bool = False

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)


def find_machine(topology: str) -> Machine:
    """Read a topology: the chip's name, a colon, and the devices along each side of the grid.

    >>> find_machine("v5e:4x4").num_devices, find_machine("h200:1").chip.name
    (16, 'NVIDIA H200 SXM')

    Raises:
        ValueError: the chip is not known, or the shape is none.
    """
    name, _, shape = topology.lower().partition(":")
    if name not in CHIPS:
        raise ValueError(
            f"topology: there is no chip {name!r}; write one of {', '.join(CHIPS)}, a colon and "
            "the devices, such as v5e:4x4 or h200:8"
        )
    sides = tuple(int(side) for side in shape.split("x")) if _SHAPE.fullmatch(shape) else ()
    if not sides or 0 in sides:
        raise ValueError(f"topology: {shape!r} is no shape; write {name}:4x4 or {name}:8")
    return Machine(CHIPS[name], sides, is_tpu=name.startswith("v"))
