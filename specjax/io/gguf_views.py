"""A tensor of the Hub as a part of a stored one: other rows first, on its side, one expert of many.

What is not asked for is not read: rows are chosen among the stored bytes, and so are the blocks
of a row, before any of them is dequantised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Quantization

from specjax.io.gguf_header import Tensor

_STORED_AS = {
    Quantization.F32: np.float32,
    Quantization.F16: np.float16,
    Quantization.BF16: ml_dtypes.bfloat16,
}


@dataclasses.dataclass(frozen=True)
class View:
    """How a tensor is made of a stored one.

    ``expert`` is the index on the first axis of a stack. ``order`` maps a number of rows to the
    stored row of each. ``transposed`` swaps the axes; ``excess`` was added to the values.
    """

    tensor: Tensor
    expert: int | None = None
    order: Callable[[int], np.ndarray] | None = None
    transposed: bool = False
    excess: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole, as on the Hub."""
        shape = self.tensor.shape if self.expert is None else self.tensor.shape[1:]
        return shape[::-1] if self.transposed else shape

    def read(self, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Read the part that ``index`` selects on the leading axes.

        Raises:
            ValueError: the heads do not divide the rows.
        """
        index = (*index, *[slice(None)] * (len(self.shape) - len(index)))
        values = self._stored(index[::-1]).T if self.transposed else self._stored(index)
        return values.astype(np.float32) - np.float32(self.excess) if self.excess else values

    def _stored(self, index: tuple[slice | np.ndarray, ...]) -> np.ndarray:
        blocks = self.tensor.blocks if self.expert is None else self.tensor.blocks[self.expert]
        if self.order is not None:
            index = (self.order(self.shape[0])[index[0]], *index[1:])
        return _dequantised(blocks[index[:-1]], self.tensor.kind, index[-1])


def split_rotary_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order of GGUF's query and key weights.

    GGUF rotates neighbouring rows (0, 1), (2, 3), …; Hugging Face rotates row i of a head with
    row i + head_dim/2. So the even rows of a head come first and the odd ones after.

    >>> split_rotary_halves(np.arange(4), num_heads=1)
    array([0, 2, 1, 3])
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def interleave_heads(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order of GPT-NeoX's fused weight: queries, keys and values, head after head.

    >>> interleave_heads(np.arange(6), num_heads=2)
    array([0, 2, 4, 1, 3, 5])
    """
    blocks = weight.reshape(3, num_heads, -1, *weight.shape[1:])
    return blocks.swapaxes(0, 1).reshape(weight.shape)


def _dequantised(blocks: np.ndarray, kind: Quantization, columns: slice | np.ndarray) -> np.ndarray:
    """Columns of rows that are stored as u8[..., bytes]; never a view of the mapped file."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if isinstance(columns, slice):
        start, stop, step = columns.indices(blocks.shape[-1] // block_bytes * per_block)
        if step == 1:
            stop = max(start, stop)
            first, last = start // per_block, -(-stop // per_block)
            blocks = blocks[..., first * block_bytes : last * block_bytes]
            columns = slice(start - first * per_block, stop - first * per_block)
    if kind in _STORED_AS:  # a copy: jax could otherwise alias the file
        return np.array(blocks.view(_STORED_AS[kind])[..., columns])
    if blocks.size == 0:
        width = blocks.shape[-1] // block_bytes * per_block
        return np.empty((*blocks.shape[:-1], width), np.float32)[..., columns]
    with np.errstate(all="ignore"):  # a corrupt scale may be anything
        return gguf.quants.dequantize(blocks, kind)[..., columns]
