"""One call, ready to run: the program it needs, its arrays, and what the host must remember."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from specjax.io.stop_strings import MOST, find_strings
from specjax.processors import chain
from specjax.program import Program
from specjax.protocols import Processor, Tokenizer
from specjax.request import Request
from specjax.settings import each_row


@dataclasses.dataclass(frozen=True)
class Call:
    """What ``Decoder.prepare`` makes. ``stops`` are the strings that end each row."""

    program: Program
    request: Request
    stops: list[tuple[str, ...]]

    @property
    def num_rows(self) -> int:
        """Rows of the answer: the samples of a prompt stand together."""
        return len(self.stops)


def prepare(
    program: Program,
    own: tuple[Processor, ...],
    request: Request,
    tokenizer: Tokenizer | None,
    settings: Mapping[str, Any],
) -> Call:
    """Give the program the processors, the user's ``own`` among them, and the stop strings.

    Raises:
        ValueError: a stop string is empty, there are too many, or there is no tokenizer.
    """
    rows = strings_of(len(request.length), settings.get("stop"))
    sampling, stops = request.sampling, None
    different = tuple(sorted({s for row in rows for s in row}))
    if different:
        stops = _find(different, tokenizer, program.target.vocab_size)
        bits = [sum(1 << different.index(s) for s in set(row)) for row in rows]
        sampling = dataclasses.replace(sampling, stop_strings=jnp.asarray(bits, jnp.int32))
    program = dataclasses.replace(program, processors=chain(sampling, own), stops=stops)
    every = [row for row in rows for _ in range(request.num_samples)]
    return Call(program, dataclasses.replace(request, sampling=sampling), every)


def _find(strings: tuple[str, ...], tokenizer: Tokenizer | None, vocab_size: int):
    if tokenizer is None:
        raise ValueError(
            "stop: strings need a tokenizer, and the target has none; give stop_token_ids, or "
            "Decoder(..., tokenizer=...)"
        )
    if len(strings) > MOST:
        raise ValueError(f"stop: at most {MOST} different strings a call, got {len(strings)}")
    return find_strings(strings, tuple(tokenizer.token_bytes), vocab_size)


def strings_of(batch: int, stop: Any) -> list[tuple[str, ...]]:
    """Stop strings of each row: a string or several for all, or a list (or None) for each.

    >>> strings_of(2, "END"), strings_of(2, [["a", "b"], None])
    ([('END',), ('END',)], [('a', 'b'), ()])
    """

    def is_one(value: Any) -> bool:
        return isinstance(value, str) or all(isinstance(s, str) for s in value)

    if not isinstance(stop, str | Sequence | None):
        raise ValueError(f"stop: must be a string or a list of strings, got {stop!r}")
    rows = each_row("stop", stop, batch, is_one)
    rows = [() if row is None else (row,) if isinstance(row, str) else tuple(row) for row in rows]
    for string in (s for row in rows for s in row):
        if not isinstance(string, str) or not string:
            raise ValueError(f"stop: must be strings of at least one character, got {string!r}")
    return rows
