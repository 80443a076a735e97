"""Tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """Align columns: those in ``left`` to the left, the others to the right.

    >>> table([["a", "b"], ["long", "12"]])
    ['a      b', 'long  12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
