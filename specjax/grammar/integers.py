"""Integers between two bounds as a regular expression."""

from __future__ import annotations


def integers_between(low: int | None, high: int | None) -> str:
    r"""All integers from ``low`` to ``high``, both included, as JSON writes them; None is no bound.

    >>> integers_between(0, 120)
    '(?:[0-9]|[1-9][0-9]|1(?:[0-1][0-9]|20))'
    >>> integers_between(-1, None)
    '(?:\\-1|0|[1-9][0-9]*)'
    """
    if low is None and high is None:
        return "-?(?:0|[1-9][0-9]*)"
    parts = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts += [f"\\-{p}" for p in _magnitudes(least, None if low is None else -low)]
    if high is None or high >= 0:
        parts += _magnitudes(max(low or 0, 0), high)
    return f"(?:{'|'.join(parts)})"


def _magnitudes(low: int, high: int | None) -> list[str]:
    """Numbers from ``low`` >= 0 on without a sign, one pattern for each number of digits."""
    if high is None:
        if low <= 1:
            return ["0"] * (low == 0) + ["[1-9][0-9]*"]
        digits = len(str(low))
        return [*_magnitudes(low, 10**digits - 1), f"[1-9][0-9]{{{digits},}}"]
    parts = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        least = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        parts.append(_digits(str(least), str(min(high, 10**digits - 1))))
    return parts


def _digits(low: str, high: str) -> str:
    """Numbers between two of the same length."""
    rest = len(low) - 1
    if not low:
        return ""
    if low[0] == high[0]:
        return low[0] + _digits(low[1:], high[1:])
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):  # not every number that begins so
        parts.append(low[0] + _digits(low[1:], "9" * rest))
        first += 1
    end = []
    if high[1:].strip("9"):
        end.append(high[0] + _digits("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        parts.append((str(first) if first == last else f"[{first}-{last}]") + "[0-9]" * rest)
    return _alternatives(parts + end)


def _alternatives(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
