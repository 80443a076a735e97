"""A grammar over the tokens of one tokenizer, built once on the host and used by any batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from specjax.automaton import Automaton, bucket, split
from specjax.constraint import Constraint
from specjax.grammar.byte_automaton import byte_automaton
from specjax.grammar.schema import schema_pattern
from specjax.grammar.token_automaton import likely_tokens, only_tokens, token_columns, trim
from specjax.protocols import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Grammar:
    """The texts a row may become, as an automaton over tokens; state 0 is the start.

    It takes V + S x C ints: ``classes`` of tokens, and the next state of each class. A schema of
    ten bounded fields over 49k tokens has about 1,000 states and 400 classes (1.8 MB) and is built
    in a second. From every state some tokens lead to the end of a text. The other arrays are as in
    ``Constraint``.
    """

    pattern: str
    classes: Int[np.ndarray, " V"]
    table: Int[np.ndarray, "S C"]
    final: Bool[np.ndarray, " S"]
    only: Int[np.ndarray, " S"]
    likely: Int[np.ndarray, " S"]

    @property
    def num_states(self) -> int:
        return len(self.final)

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens, without a stop id, are a whole text of the grammar."""
        state = 0
        for token in tokens:
            state = self.table[state, self.classes[token]]
            if state < 0:
                return False
        return bool(self.final[state])

    def __repr__(self) -> str:
        return f"Grammar({self.pattern!r:.60}, {self.num_states} states)"


def regex(pattern: str, tokenizer: Tokenizer) -> Grammar:
    r"""Texts that match a regular expression as a whole, in any spelling the tokenizer knows.

    Special tokens are never part of a text. The syntax is that of Rust's ``regex`` crate: no
    look-around, no back-references, no ``\b``. Repetition costs states: a few for each character.

    Raises:
        ValueError: the pattern cannot be followed by an automaton, or no tokens match it.
        ImportError: the library that builds it is missing; pip install 'specjax[grammar]'.
    """
    tokens = tokenizer.token_bytes
    by_byte, final = byte_automaton(pattern)
    likely = likely_tokens(by_byte, final, tokens)
    classes, table, kept = trim(*token_columns(by_byte, tokens), final)
    final, likely = final[kept], likely[kept]
    only = only_tokens(classes, table, final)
    possible = table[np.arange(len(kept)), classes[likely]] >= 0
    likely = np.where(only >= 0, only, np.where(possible & (likely >= 0), likely, -1))
    return Grammar(pattern, classes, table, final, only, likely.astype(np.int32))


def json_schema(
    schema: dict[str, Any] | str,
    tokenizer: Tokenizer,
    *,
    separators: tuple[str, str] = (", ", ": "),
) -> Grammar:
    """JSON that validates against a schema, written as ``json.dumps`` writes it.

    ``separators`` are those of ``json.dumps``; there is no other white space. Properties come in
    the order of the schema. See ``specjax.grammar.schema`` for the keywords that are known: an
    unknown one is refused, never ignored.

    Raises:
        ValueError: the schema says what an automaton cannot follow, by keyword and place.
        ImportError: the library that builds it is missing; pip install 'specjax[grammar]'.
    """
    return regex(schema_pattern(schema, separators), tokenizer)


def join(
    grammars: Sequence[Grammar | None], vocab_size: int, *, least: int = 64
) -> tuple[Constraint, Int[np.ndarray, " B"]]:
    """One processor for all rows, and the start state of each: its ``Sampling.grammar``.

    None is a row without a grammar, in state 0, which allows all ``vocab_size`` tokens. A grammar
    that several rows share is held once. States and classes are padded to powers of two from
    ``least`` on, so that grammars of about the same size do not retrace.

    Raises:
        ValueError: a grammar has tokens beyond the vocabulary.
    """
    distinct = list(dict.fromkeys(g for g in grammars if g is not None))
    if any(len(g.classes) > vocab_size for g in distinct):
        raise ValueError(
            f"grammars: made for a tokenizer of more than the target's {vocab_size} tokens; "
            "build them with the target's own"
        )
    start: dict[Grammar | None, int] = {None: 0}
    classes = np.zeros(vocab_size, np.int64)
    num = 1
    for grammar in distinct:
        start[grammar] = num
        num += grammar.num_states
        classes, _ = split(classes, _classes(grammar, vocab_size))
    member = np.unique(classes, return_index=True)[1]
    rows = [np.zeros((1, len(member)), np.int32)]
    for grammar in distinct:
        table = grammar.table[:, _classes(grammar, vocab_size)[member]]
        rows.append(np.where(table >= 0, table + start[grammar], -1))
    size = bucket(num, least)
    constraint = Constraint(
        Automaton.pack(classes, np.concatenate(rows), least=least),
        _padded([np.array([True]), *(g.final for g in distinct)], size, False),
        _padded([np.array([-1]), *(g.only for g in distinct)], size, -1),
        _padded([np.array([-1]), *(g.likely for g in distinct)], size, -1),
    )
    return constraint, np.array([start[g] for g in grammars], np.int32)


def _classes(grammar: Grammar, vocab_size: int) -> np.ndarray:
    """Classes of all tokens of a target; those that the tokenizer does not know are in class 0."""
    return np.pad(grammar.classes, (0, vocab_size - len(grammar.classes)))


def _padded(parts: list[np.ndarray], size: int, fill: int | bool):
    whole = np.concatenate(parts)
    whole = np.pad(whole, (0, size - len(whole)), constant_values=fill)
    return jnp.asarray(whole, bool if whole.dtype == bool else jnp.int32)
