"""A ``.gguf`` file seen as a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specjax.io.gguf_config import config_from_metadata, family_of
from specjax.io.gguf_families import num_experts, num_heads
from specjax.io.gguf_header import Tensor, read_header
from specjax.io.gguf_keys import Keys
from specjax.io.gguf_names import MAX_EXPERTS, hub_views
from specjax.io.gguf_rope import FACTORS
from specjax.io.gguf_tokenizer import tokenizer_from_metadata
from specjax.io.gguf_views import View
from specjax.io.tokenizer import Tokenizer


class GGUFCheckpoint:
    """A memory-mapped GGUF file; a tensor, or a part of one, is dequantised when it is read.

    Names, shapes and orders are those of the Hub: what llama.cpp changes is undone, and experts
    that it stacks are single tensors again.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or corrupt, or its architecture or a quantisation is
            not supported (the message names it).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata, tensors = read_header(self.path)
        keys = Keys(self.metadata, str(self.path))
        if keys.metadata.get("split.count", 1) != 1:
            raise keys.error("is a part of a model; join them with llama-gguf-split --merge")
        self._views = _hub_views(keys, [x for x in tensors if x.name not in FACTORS])
        factors = {x.name: _table(keys, x) for x in tensors if x.name in FACTORS}
        self.config = config_from_metadata(keys, self._views.keys(), factors)

    def names(self) -> Iterable[str]:
        """Return the Hugging Face names of all tensors; one without such a name keeps its own."""
        return self._views.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, as in Hugging Face."""
        return self._views[name].shape

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Read one tensor: float32 from a quantised one, its own type otherwise.

        Args:
            name: one of ``names()``.
            index: what to read, along the leading axes; other axes are whole.

        Raises:
            ValueError: the heads of the configuration do not divide its rows.
        """
        try:
            return self._views[name].read(index)
        except ValueError as error:
            raise ValueError(f"{self.path}: tensor {name!r} cannot be read ({error})") from error

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer from the file's vocabulary, or return None where there is none."""
        if "tokenizer.ggml.model" not in self.metadata:
            return None
        return tokenizer_from_metadata(self.metadata, str(self.path))


def _hub_views(keys: Keys, tensors: list[Tensor]) -> dict[str, View]:
    family, experts = family_of(keys), num_experts(keys)
    if experts > MAX_EXPERTS:
        raise keys.error(f"{keys.kind}.expert_count is {experts}; at most {MAX_EXPERTS} are read")
    heads, kv_heads = num_heads(keys)
    try:
        return hub_views(family, tensors, heads, kv_heads, experts)
    except ValueError as error:
        raise keys.error(str(error)) from error


def _table(keys: Keys, tensor: Tensor) -> np.ndarray:
    if len(tensor.shape) != 1:
        raise keys.error(f"tensor {tensor.name!r} has shape {tensor.shape}, not one axis")
    return View(tensor).read().astype(np.float32)
