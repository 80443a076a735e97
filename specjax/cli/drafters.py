"""From what ``--drafter`` says to a drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specjax.drafters import DraftModel, EarlyExit, Lookahead, NGram, Retrieval, Suffix, first_of
from specjax.io import load
from specjax.io.datastore import load_datastore


def drafter_of(text: str, target: Any, target_name: str, length: int) -> Any:
    """Make the drafter that ``text`` names; several with commas between are asked in turn.

    Raises:
        ValueError: a name is not known, or misses what it needs after the colon.
        OSError: a store or model cannot be read.
    """
    parts = [_one(part.strip(), target, target_name, length) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else first_of(*parts)


def _one(text: str, target: Any, target_name: str, length: int) -> Any:
    name, _, rest = text.partition(":")
    if name in MAKERS:
        return MAKERS[name](rest, length)
    model = target if text == target_name else _load_model(text)
    return DraftModel(model, length)


def _load_model(name: str) -> Any:
    try:
        return load(name)
    except ValueError as error:
        known = ", ".join(MAKERS)
        raise ValueError(f"--drafter: is none, {known}, or a model: {error}") from error


def _retrieval(store: str, length: int) -> Retrieval:
    if not store:
        raise ValueError(
            "--drafter: retrieval needs a store, retrieval:FILE; specjax datastore build makes one"
        )
    return Retrieval(load_datastore(store), length)


def _early_exit(layers: str, length: int) -> EarlyExit:
    if not layers.isdecimal():
        raise ValueError("--drafter: early-exit needs a number of layers, such as early-exit:22")
    return EarlyExit(int(layers), length)


def _suffix(store: str, length: int) -> Suffix:
    return Suffix(length, store=load_datastore(store) if store else None)


def _nothing_after(name: str, rest: str) -> None:
    if rest:
        raise ValueError(f"--drafter: {name} takes nothing after a colon, got {rest!r}; drop it")


def _ngram(rest: str, length: int) -> NGram:
    _nothing_after("ngram", rest)
    return NGram(length)


def _lookahead(rest: str, length: int) -> Lookahead:
    _nothing_after("lookahead", rest)
    return Lookahead(ngram=length + 1)


MAKERS: dict[str, Callable[[str, int], Any]] = {
    "ngram": _ngram,
    "suffix": _suffix,
    "retrieval": _retrieval,
    "lookahead": _lookahead,
    "early-exit": _early_exit,
}
"""What makes a drafter from what follows the colon and the draft length."""
