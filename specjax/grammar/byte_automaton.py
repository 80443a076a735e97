"""From a regular expression to a deterministic automaton over the bytes of UTF-8."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

END = "\U0010ffff"
"""Marks the end of a text: a noncharacter, so no text holds it."""


def byte_automaton(pattern: str) -> tuple[Int[np.ndarray, "S 256"], Bool[np.ndarray, " S"]]:
    """Next state of every byte, -1 where none, and the states in which a text may end.

    State 0 is the start. A text matches as a whole, whatever quantifiers are lazy. The syntax is
    that of Rust's ``regex`` crate: classes, groups, alternation, bounded repetition, ``(?i)``,
    Unicode; no look-around, no back-references, no word boundaries.

    Raises:
        ValueError: the pattern cannot be an automaton, or matches nothing.
    """
    if not isinstance(pattern, str):
        raise ValueError(f"pattern: must be a string, got {pattern!r:.60}")
    core = _library()
    alphabet = core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    try:
        # The library looks for the leftmost first match, which would stop at the first alternative
        # and at lazy quantifiers; a mark at the end of the text leaves no choice of where to stop.
        index = core.Index(f"(?:{without_anchors(pattern)})\\x{{10FFFF}}", alphabet)
    except ValueError as error:
        raise ValueError(
            f"pattern: {pattern!r:.80} is no regular expression that an automaton can follow "
            f"({error!s:.200}); leave out look-around, back-references, anchors and \\b"
        ) from None
    table, matched = _renumbered(index)
    return table, _walk(table, END.encode(), matched)


def _library():
    try:
        import outlines_core
    except ImportError as error:
        raise ImportError(
            "grammars are built by outlines-core, which is not installed; "
            "pip install 'specjax[grammar]'"
        ) from error
    return outlines_core


def without_anchors(pattern: str) -> str:
    """Drop ^ at the beginning and $ at the end: the whole text is matched anyway."""
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return (pattern if escaped else body).removeprefix("^")


def _renumbered(index) -> tuple[Int[np.ndarray, "S 256"], Bool[np.ndarray, " S"]]:
    """The library's states as 0, 1, ... from the start, in the order they are reached."""
    transitions, ends = index.get_transitions(), index.get_final_states()
    number = {index.get_initial_state(): 0}
    rows = []
    order = list(number)
    for state in order:
        row = np.full(256, -1, np.int32)
        for byte, following in transitions.get(state, {}).items():
            if byte == 256:  # the library's own end of text
                continue
            if following not in number:
                number[following] = len(order)
                order.append(following)
            row[byte] = number[following]
        rows.append(row)
    return np.stack(rows), np.array([state in ends for state in order])


def _walk(table: np.ndarray, text: bytes, matched: np.ndarray) -> np.ndarray:
    """From which states ``text`` leads to a match."""
    table = np.vstack([table, np.full((1, 256), -1, np.int32)])
    at = np.arange(len(matched))
    for byte in text:
        at = table[at, byte]
    return np.append(matched, False)[at]
