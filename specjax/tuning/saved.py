"""Results of tuning on disk: one JSON file for each fingerprint, ignored where it is not right."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from specjax.io.aliases import default_cache_dir
from specjax.tuning.costs import RoundCosts
from specjax.tuning.trials import Trial
from specjax.tuning.tuned import Tuned

FORMAT = 1
_logger = logging.getLogger(__name__)

Choose = Callable[[list[RoundCosts], list[Trial]], Tuned]
"""``Tuned.choose`` with all but the costs and trials."""


def path_of(cache: str | os.PathLike[str] | bool | None, key: str) -> Path | None:
    """The file of a fingerprint in a folder, True being the user's own; None to keep none.

    Raises:
        ValueError: ``cache`` is none of these, or names a file.
    """
    if cache is None or cache is False:
        return None
    if cache is not True and not isinstance(cache, str | os.PathLike):
        raise ValueError(f"cache: must be a folder, True or None, got {cache!r}")
    folder = default_cache_dir() / "autotune" if cache is True else Path(cache).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cache: {folder} is a file; give a folder")
    return folder / f"{key[:32]}.json"


def read(path: Path, key: str, choose: Choose) -> Tuned | None:
    """What was found before; None, with a warning, where the file does not hold that."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["format"] != FORMAT or saved["key"] != key:
            raise ValueError("it is of another version or for something else")
        costs = [RoundCosts.from_dict(cost) for cost in saved["costs"]]
        return choose(costs, [Trial.from_dict(row) for row in saved["trials"]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _logger.warning("%s cannot be used (%r); measuring again", path, error)
        return None


def write(path: Path, key: str, tuned: Tuned) -> None:
    """Keep a result, whole or not at all; a folder that cannot be written is only warned of."""
    text = json.dumps({"format": FORMAT, "key": key, **tuned.to_dict()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix="partial-", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        _logger.warning("%s cannot be written (%s); the result is not kept", path, error)
