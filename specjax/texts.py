"""What of a row's tokens is shown as text: all before the stop."""

from __future__ import annotations

from collections.abc import Sequence

from specjax.protocols import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def answer(
    tokenizer: Tokenizer, tokens: list[int], stop_ids: set[int], stops: Sequence[str]
) -> tuple[str, int | str | None]:
    """The text of a row that a stop ended, and the stop: a token id, or a string."""
    if tokens and tokens[-1] in stop_ids:
        return tokenizer.decode(tokens[:-1]), tokens[-1]
    text = tokenizer.decode(tokens)
    dropped = dropped_spaces(tokenizer, tokens, text)
    before = tokenizer.decode(tokens[:-1])
    before = dropped_spaces(tokenizer, tokens[:-1], before) + before
    # A half character at the end of what came before may be another one by now.
    found = first_complete(dropped + text, stops, len(before.rstrip(_BROKEN)))
    if found is None:
        return text, None
    return text[: max(found[0] - len(dropped), 0)], found[1]


def dropped_spaces(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> str:
    """What some decoders leave out at the very start of a text; strings are sought with it."""
    spelled = b"".join(tokenizer.token_bytes[token] for token in tokens)
    missing = len(spelled) - len(spelled.lstrip(b" ")) - (len(text) - len(text.lstrip(" ")))
    return " " * missing


def first_complete(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, str] | None:
    """Which string is complete first beyond ``after`` characters, and where it begins.

    Of several complete at once it is the longest.

    >>> first_complete("a-b-c", ["-c", "b-c", "zz"])
    (2, 'b-c')
    """
    found = []
    for stop in stops:
        begin = text.find(stop, max(0, after - len(stop) + 1))
        if begin >= 0:
            found.append((begin + len(stop), begin, stop))
    return min(found)[1:] if found else None


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may turn out to be the beginning of a stop.

    >>> held_back("so far: EN", ["END", "STOP"])
    2
    """
    possible = (
        length
        for stop in stops
        for length in range(min(len(stop) - 1, len(text)), 0, -1)
        if text.endswith(stop[:length])
    )
    return max(possible, default=0)
