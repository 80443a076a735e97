"""What every source of weights offers: a configuration, named tensors and perhaps a tokenizer."""

from __future__ import annotations

from pathlib import Path
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


def require_readable(path: Path) -> None:
    """Open and close a file, so that a missing or forbidden one is reported by name.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: it may not be read.
    """
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise PermissionError(
            f"{path} may not be read by this user; make it readable (chmod +r) or load a copy"
        ) from None
