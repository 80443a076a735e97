"""What an array takes in a TPU's memory: it is kept in tiles of up to 8 x 128 numbers."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

LANES = 128
"""Numbers that lie side by side."""

ROWS = 8
"""Rows of a tile, fewer where an axis has fewer; two rows of 16 bits lie in one of 32."""


@lru_cache(maxsize=1024)
def tiled_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes with padding, in the order of axes that has the least, which the compiler takes.

    >>> tiled_bytes((1, 4102, 2, 128), 2) - 2 * 4102 * 128 * 2
    0
    >>> tiled_bytes((1, 4102, 2, 64), 2) // (2 * 64 * 2)  # slots lie side by side, in 33 tiles
    4224
    """
    packed = max(4 // itemsize, 1)
    if len(shape) < 2:
        num = math.prod(shape)
        return _up(num, min(ROWS * LANES, max(packed * LANES, _power(num)))) * itemsize
    return itemsize * min(
        math.prod(n for axis, n in enumerate(shape) if axis not in (lane, row))
        * _up(shape[lane], LANES)
        * _up(shape[row], min(ROWS, max(packed, _power(shape[row]))))
        for lane, row in itertools.permutations(range(len(shape)), 2)
    )


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()
