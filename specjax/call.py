"""One call, ready to run: the program it needs, its arrays, and what the host must remember."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp

from specjax.drafters import Forced, Plain, first_of
from specjax.grammar import Grammar, join
from specjax.io.stop_strings import MOST, find_strings
from specjax.processors import chain
from specjax.program import Program
from specjax.prompts import listed
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

    With a grammar the drafter drafts what the grammar leaves no choice about, first.

    Raises:
        ValueError: a stop string is empty, there are too many, or there is no tokenizer.
    """
    batch, vocab_size = len(request.length), program.target.vocab_size
    rows = strings_of(batch, settings.get("stop"))
    sampling, stops = request.sampling, None
    drafter, draft_chain = program.drafter, program.draft_processors
    different = tuple(sorted({s for row in rows for s in row}))
    if different:
        stops = _find(different, tokenizer, vocab_size)
        bits = [sum(1 << different.index(s) for s in set(row)) for row in rows]
        sampling = dataclasses.replace(sampling, stop_strings=jnp.asarray(bits, jnp.int32))
    grammars = grammars_of(batch, settings.get("grammar"))
    if any(grammar is not None for grammar in grammars):
        constraint, begin = _joined(grammars, vocab_size)
        sampling = dataclasses.replace(sampling, grammar=jnp.asarray(begin))
        own = (constraint, *own)
        if draft_chain is not None:
            draft_chain = (constraint, *draft_chain)
        if not isinstance(drafter, Plain):
            drafter = first_of(Forced(drafter.depth), drafter)
    program = dataclasses.replace(
        program,
        drafter=drafter,
        processors=chain(sampling, own),
        draft_processors=draft_chain,
        stops=stops,
    )
    request = dataclasses.replace(request, sampling=sampling)
    if program.layout is not None:
        program, request = program.layout.put_whole((program, request))
    every = [row for row in rows for _ in range(request.num_samples)]
    return Call(program, request, every)


_joined = lru_cache(maxsize=16)(join)


def grammars_of(batch: int, grammar: Any) -> tuple[Grammar | None, ...]:
    """The grammar of each row, None where there is none."""
    rows = each_row("grammar", grammar, batch, lambda value: not isinstance(value, list | tuple))
    for one in rows:
        if one is not None and not isinstance(one, Grammar):
            raise ValueError(
                f"grammar: must come from specjax.grammar.regex or json_schema, got {one!r:.60}"
            )
    return tuple(rows)


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
    return [_strings(row) for row in each_row("stop", stop, batch, is_one)]


def _strings(row: Any) -> tuple[str, ...]:
    """Stop strings of one row, checked."""
    row = [] if row is None else row
    strings = (row,) if isinstance(row, str) else tuple(listed(row))
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"stop: must be strings of at least one character, got {string!r}")
        if any("\ud800" <= c <= "\udfff" for c in string):
            raise ValueError(f"stop: {string!r} has half a surrogate pair, which no text has")
    return strings
