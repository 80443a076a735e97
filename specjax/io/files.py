"""Files that errors name: readable ones, and objects in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: the file is no JSON object.
    """
    require_readable(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
