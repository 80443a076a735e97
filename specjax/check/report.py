"""What the checks found: a verdict each, the figures behind it, and what it means."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check. ``passed`` is None where there was nothing to judge, and ``meaning`` says why.

    ``figures`` are plain numbers, texts, lists and dicts of such.
    """

    name: str
    passed: bool | None
    figures: dict[str, Any]
    meaning: str

    @property
    def verdict(self) -> str:
        """In a word."""
        return {True: "ok", False: "FAILED", None: "skipped"}[self.passed]


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings about one pair.

    >>> report = Report((Finding("law", False, {"p": 0.0}, "biased"), Finding("x", None, {}, "")))
    >>> report.passed, report.failed
    (False, ('law',))
    """

    checks: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; one that was skipped has not."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.passed is False)

    def __getitem__(self, name: str) -> Finding:
        """Look a finding up by the name of its check."""
        return next(check for check in self.checks if check.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The same in plain values, as JSON takes them: what is not a number is None."""
        checks = [dataclasses.asdict(c) | {"verdict": c.verdict} for c in self.checks]
        return {"passed": self.passed, "failed": list(self.failed), "checks": _plain(checks)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
