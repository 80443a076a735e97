"""What every source of weights offers: a configuration, named tensors and perhaps a tokenizer."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from specjax.io.tokenizer import Tokenizer
from specjax.models import weights


@runtime_checkable
class Checkpoint(weights.Checkpoint, Protocol):
    """A stored model: ``config`` is the content of its ``config.json``.

    ``read`` returns one tensor at a time, so that whoever assembles a model never holds two
    copies of it; bfloat16 comes as ``ml_dtypes.bfloat16``.
    """

    @property
    def config(self) -> dict[str, Any]: ...
    def tokenizer(self) -> Tokenizer | None: ...
