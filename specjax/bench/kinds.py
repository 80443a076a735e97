"""What a token of an answer is: where in a text drafts are right, and where they are not.

The first kind that fits, in the order of ``KINDS`` but for names and continuations:

1. bracket: one of ()[]{} and no letter or digit.
2. digit: a digit.
3. quoted span: each character is within ``SPAN`` or more in a row that stand in the prompt.
4. clause start: the first letter of the answer, or after one of . ! ? ; : , or a new line.
5. name: a word begins, with a capital letter; the pronoun I is none.
6. word continuation: it starts with a letter, and what is before it ends with one.
7. other.
"""

from __future__ import annotations

from collections.abc import Sequence

KINDS = (
    *("bracket", "digit", "name", "word continuation"),
    *("clause start", "quoted span", "other"),
)

SPAN = 12
"""Characters that a quotation has at least: some three or four tokens."""

_BRACKETS, _MARKS = frozenset("()[]{}"), frozenset(".!?;:,\n")


def kinds_of(pieces: Sequence[str], prompt: str = "") -> list[str]:
    """The kind of each token of one answer, in time linear in the texts.

    Args:
        pieces: the text of each token, in order.
        prompt: what the answer may quote.

    >>> kinds_of(["Dear", " Ma", "ria", ",", " it", " is", " 9", ")"])
    ['clause start', 'name', 'word continuation', 'other', 'clause start', 'other', 'digit',
     'bracket']
    """
    kinds, starts, before = [], True, ""
    for piece, quoted in zip(pieces, _quoted(pieces, prompt), strict=True):
        kinds.append(_kind(piece, before, starts, quoted))
        starts = _starts_after(piece, starts)
        before = piece or before
    return kinds


def _kind(piece: str, before: str, starts: bool, quoted: bool) -> str:
    word = piece.lstrip()
    continues = piece[:1].isalpha() and before[-1:].isalpha()
    if _BRACKETS.intersection(piece) and not any(map(str.isalnum, piece)):
        return "bracket"
    if any(map(str.isdigit, piece)):
        return "digit"
    if quoted:
        return "quoted span"
    if _starts_clause(piece, starts):
        return "clause start"
    if word[:1].isupper() and not continues and word != "I":
        return "name"
    return "word continuation" if continues else "other"


def _starts_clause(piece: str, starts: bool) -> bool:
    """Whether its first letter is the first of a clause."""
    first = next((i for i, sign in enumerate(piece) if sign.isalpha()), None)
    return first is not None and (starts or not _MARKS.isdisjoint(piece[:first]))


def _starts_after(piece: str, starts: bool) -> bool:
    """Whether the next letter will be: a mark came after the last letter or digit."""
    for sign in reversed(piece):
        if sign in _MARKS:
            return True
        if sign.isalnum():
            return False
    return starts


def _quoted(pieces: Sequence[str], prompt: str) -> list[bool]:
    """Whether each piece is within stretches of ``SPAN`` characters that stand in the prompt."""
    spans = {prompt[i : i + SPAN] for i in range(len(prompt) - SPAN + 1)}
    answer = "".join(pieces)
    found, covered, start = [], 0, 0
    for i in range(len(answer)):
        if answer[i : i + SPAN] in spans:
            covered = i + SPAN
        found.append(i < covered)
    quoted = []
    for piece in pieces:
        quoted.append(bool(piece) and all(found[start : start + len(piece)]))
        start += len(piece)
    return quoted
