"""An architecture's metadata, each value checked as it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Keys:
    """Metadata under the name of the file's architecture; errors name the file and the key."""

    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self.metadata, self.path = metadata, path
        self.kind = metadata.get("general.architecture")

    def error(self, message: str) -> ValueError:
        """A ValueError that begins with the file's name, to be raised."""
        return ValueError(f"{self.path}: {message}")

    def has(self, name: str) -> bool:
        """Whether the key is there."""
        return f"{self.kind}.{name}" in self.metadata

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number; without ``default`` the key must be there.

        Raises:
            ValueError: it is missing, none, or less than ``least``.
        """
        found = self.metadata.get(f"{self.kind}.{name}", default)
        if type(found) is not int or found < least:
            raise self._unfit(name, found)
        return found

    def real(self, name: str, default: float | None = None) -> float:
        """Return a positive, finite number; without ``default`` the key must be there.

        Raises:
            ValueError: it is missing, none, infinite, or not positive.
        """
        found = self.metadata.get(f"{self.kind}.{name}", default)
        if type(found) not in (int, float) or not math.isfinite(found) or found <= 0:
            raise self._unfit(name, found)
        return float(found)

    def text(self, name: str, default: str) -> str:
        """Return a string, or ``default`` where there is none."""
        found = self.metadata.get(f"{self.kind}.{name}", default)
        if not isinstance(found, str):
            raise self.error(f"{self.kind}.{name} must be a string")
        return found

    def _unfit(self, name: str, found: Any) -> ValueError:
        shown = found if isinstance(found, int | float | None) else type(found).__name__
        return self.error(f"{self.kind}.{name} must be a positive number, got {shown!r}")
