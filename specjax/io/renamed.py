"""Checkpoints under the names that a family expects: a text model inside another, a bare one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from specjax.io.checkpoint import Checkpoint
from specjax.io.tokenizer import Tokenizer
from specjax.models.table import Index

TEXT_MODELS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Architectures with a text model inside, and what that alone is called."""

_TEXT, _BARE = "language_model.", "transformer."


class Renamed:
    """A checkpoint of which some tensors are seen, under other names."""

    def __init__(
        self, whole: Checkpoint, config: Mapping[str, Any], stored: Mapping[str, str]
    ) -> None:
        self._whole, self.config, self._stored = whole, dict(config), stored

    def names(self) -> Iterable[str]:
        """The names here."""
        return self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor."""
        return self._whole.shape(self._stored[name])

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """One tensor, or a part of it."""
        return self._whole.read(self._stored[name], index)

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the whole."""
        return self._whole.tokenizer()


def as_language_model(checkpoint: Checkpoint) -> Checkpoint:
    """Leave unread what is no language model, and name the rest as its family does."""
    architecture = (checkpoint.config.get("architectures") or [""])[0]
    names = list(checkpoint.names())
    if architecture in TEXT_MODELS:
        config = checkpoint.config.get("text_config") or {}
        stored = {x.removeprefix(_TEXT): x for x in names if x.startswith(_TEXT)}
        return Renamed(checkpoint, {**config, "architectures": [TEXT_MODELS[architecture]]}, stored)
    if architecture == "GPT2LMHeadModel" and "wte.weight" in names:
        # As OpenAI published it: the model without the class around it.
        return Renamed(checkpoint, checkpoint.config, {_BARE + x: x for x in names})
    return checkpoint
