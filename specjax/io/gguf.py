"""A ``.gguf`` file of the llama architecture, seen as a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Quantization

from specjax.io.checkpoint import require_readable
from specjax.io.gguf_config import config_from_metadata
from specjax.io.gguf_tokenizer import tokenizer_from_metadata
from specjax.io.tokenizer import Tokenizer

QUANTIZATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")

ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFCheckpoint:
    """A memory-mapped GGUF file; a tensor is dequantised when it is read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or corrupt, or its architecture or a quantisation is
            not supported (the message names it).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata, tensors = _read(self.path)
        _require_known_quantizations(self.path, tensors)
        self._tensors = {hf_name(tensor.name): tensor for tensor in tensors}
        factors = self._tensors.pop(ROPE_FACTORS, None)
        self.config = config_from_metadata(
            self.metadata,
            self._tensors.keys(),
            None if factors is None else np.asarray(factors.data, np.float32),
            str(self.path),
        )

    def names(self) -> Iterable[str]:
        """Return the Hugging Face names of all tensors; one without such a name keeps its own."""
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, [out, in] as in Hugging Face."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str) -> np.ndarray:
        """Read one tensor: float32 from a quantised one, its own type otherwise."""
        tensor = self._tensors[name]
        if tensor.tensor_type == Quantization.BF16:
            values = np.array(tensor.data).view(ml_dtypes.bfloat16)
        elif tensor.tensor_type in (Quantization.F32, Quantization.F16):
            values = np.array(tensor.data)  # a copy: jax could otherwise alias the mapped file
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if ".q_proj." in name:
            return split_rotary_halves(values, self.config["num_attention_heads"])
        if ".k_proj." in name:
            return split_rotary_halves(values, self.config["num_key_value_heads"])
        return values

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer from the file's vocabulary, or return None where there is none."""
        if "tokenizer.ggml.model" not in self.metadata:
            return None
        return tokenizer_from_metadata(self.metadata, str(self.path))


def hf_name(name: str) -> str:
    """Translate a tensor name.

    >>> hf_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{kind}"
    return f"{_TOP_NAMES[module]}.{kind}" if module in _TOP_NAMES else name


def split_rotary_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order of GGUF's query and key weights.

    GGUF rotates neighbouring rows (0, 1), (2, 3), …; Hugging Face rotates row i of a head with
    row i + head_dim/2. So the even rows of a head come first and the odd ones after.

    >>> split_rotary_halves(np.arange(4), num_heads=1)
    array([0, 2, 1, 3])
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


class _BoundedReader(gguf.GGUFReader):
    """The package's reader, but reading past the end raises (it would return empty arrays).

    Slicing a plain view in place of the memmap also makes it five times faster.
    """

    _plain: np.ndarray | None = None

    def _get(self, offset, dtype, count=1, override_order=None):
        if self._plain is None:
            self._plain = self.data.view(np.ndarray)
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > self._plain.size:
            raise ValueError(f"byte {end} is wanted of {self._plain.size}")
        order = self.byte_order if override_order is None else override_order
        values = self._plain[int(offset) : end].view(dtype)
        return values.view(values.dtype.newbyteorder(order))


def _read(path: Path) -> tuple[dict[str, Any], list[gguf.ReaderTensor]]:
    require_readable(path)
    try:
        reader = _BoundedReader(path)
        return {key: field.contents() for key, field in reader.fields.items()}, reader.tensors
    # A corrupt header makes the reader fail in as many ways as it has fields.
    except (ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise ValueError(
            f"{path} is truncated or corrupt, or no GGUF file ({error}); "
            "delete it and fetch it again"
        ) from error


def _require_known_quantizations(path: Path, tensors: Iterable[gguf.ReaderTensor]) -> None:
    for tensor in tensors:
        if tensor.tensor_type.name not in QUANTIZATIONS:
            raise ValueError(
                f"{path}: tensor {tensor.name!r} has unsupported quantisation "
                f"{tensor.tensor_type.name}; supported are {', '.join(QUANTIZATIONS)}"
            )
