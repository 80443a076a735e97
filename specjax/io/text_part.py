"""The language model inside a checkpoint that can also see: the rest is left unread."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specjax.io.checkpoint import Checkpoint
from specjax.io.tokenizer import Tokenizer
from specjax.models.table import Index

TEXT_MODELS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Architectures with a text model inside, and what that alone is called."""

_PREFIX = "language_model."


class TextPart:
    """A checkpoint seen as that of its text model: its ``text_config``, its tensors."""

    def __init__(self, whole: Checkpoint) -> None:
        self._whole = whole
        (architecture,) = whole.config["architectures"]
        text = whole.config.get("text_config") or {}
        self.config = {**text, "architectures": [TEXT_MODELS[architecture]]}

    def names(self) -> Iterable[str]:
        """Names as the text model alone would have them."""
        every = self._whole.names()
        return [x.removeprefix(_PREFIX) for x in every if x.startswith(_PREFIX)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor."""
        return self._whole.shape(_PREFIX + name)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """One tensor, or a part of it."""
        return self._whole.read(_PREFIX + name, index)

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the whole."""
        return self._whole.tokenizer()


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """The text model of a checkpoint that has more, any other as it is."""
    architectures = checkpoint.config.get("architectures") or [""]
    return TextPart(checkpoint) if architectures[0] in TEXT_MODELS else checkpoint
