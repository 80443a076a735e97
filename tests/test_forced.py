"""A grammar inside the loop: exact under every verifier, and what it forces is always accepted."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_drafters import Branching
from toy_tokenizer import ToyTokenizer

from specjax import loop, rng, sampling
from specjax.drafters import DraftModel, Forced, NGram, Plain, first_of
from specjax.grammar import join, regex
from specjax.testing import TableLM
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, decode, sampling_values, sequence_counts
from specjax.types import DEAD_END, OUT_OF_BUDGET, STOPPED
from specjax.verify import Block, Coupled, Token

TOY = ToyTokenizer([b"", b"a", b"b", b"ab", b"c", b"bc"])
V, STOP, BUDGET = 6, 0, 14
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
PROMPTS = [[1, 2], [3], [4, 1, 2, 1], [5, 5], [2, 3], [1]]

CHOICES = regex("(?:a|bc|cab)*", TOY)  # bc in one token or two, and ab across the parts
RUNS = regex("(?:caac(?:a|b))*", TOY)  # a choice every fifth letter
SPELLINGS = regex("(?:abcc(?:a|c))*", TOY)  # forced text that can be spelled in several ways
SHORT = regex("abc?", TOY)
CONSTRAINT, START = join([CHOICES, None, RUNS, SPELLINGS, SHORT, CHOICES], V, least=8)
PROCESSORS = (CONSTRAINT, *sampling.FILTERS)
OF_ROW = [CHOICES, None, RUNS, SPELLINGS, SHORT, CHOICES]

DRAFTERS = {
    "ngram": first_of(Forced(3), NGram(3)),
    "model": first_of(Forced(3), DraftModel(DRAFT, 3)),
    "tree": first_of(Forced(2), Branching(DRAFT.table)),
}
PAIRS = [
    ("ngram", Token()),
    ("model", Block()),
    ("model", Coupled()),
    pytest.param("tree", Token(), marks=pytest.mark.slow),
]


def names(value):
    return value if isinstance(value, str) else type(value).__name__


def values(temperature, stop=STOP, start=START):
    plain = sampling_values(len(start), temperature, stop_ids=(stop,))
    return dataclasses.replace(plain, grammar=jnp.asarray(start))


def run(drafter, verifier, temperature, stop=STOP):
    program = loop.Program(TARGET, drafter, verifier, PROCESSORS)
    return decode(program, PROMPTS, BUDGET, values=values(temperature, stop))


def texts(state):
    tokens, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
    return [row[len(p) : n].tolist() for row, p, n in zip(tokens, PROMPTS, length, strict=True)]


@pytest.mark.parametrize(("drafter", "verifier"), PAIRS, ids=names)
def test_greedy_equals_plain_greedy_under_the_grammar(drafter, verifier):
    plain = texts(run(Plain(), Coupled(), 0.0))
    assert texts(run(DRAFTERS[drafter], verifier, 0.0)) == plain


def test_coupled_equals_plain_sampling_under_the_grammar():
    plain = texts(run(Plain(), Coupled(), 1.0))
    assert texts(run(DRAFTERS["model"], Coupled(), 1.0)) == plain


@pytest.mark.parametrize(("drafter", "verifier"), PAIRS, ids=names)
def test_each_row_writes_a_text_of_its_own_grammar(drafter, verifier):
    state = run(DRAFTERS[drafter], verifier, 1.0)
    for text, grammar, finish in zip(texts(state), OF_ROW, np.asarray(state.finish), strict=True):
        if grammar is None:
            continue
        if finish == STOPPED:
            assert text.pop() == STOP
            assert grammar.accepts(text)
        else:
            assert finish == OUT_OF_BUDGET
            assert follow(grammar, text) is not None


def follow(grammar, tokens):
    """The state after tokens, None where one of them is not allowed."""
    state = 0
    for token in tokens:
        state = grammar.table[state, grammar.classes[token]]
        if state < 0:
            return None
    return state


@pytest.mark.parametrize(("drafter", "verifier"), PAIRS, ids=names)
def test_a_dead_end_is_named(drafter, verifier):
    """Without a stop id nothing may follow "abc": the row ends there, the others go on."""
    state = run(DRAFTERS[drafter], verifier, 1.0, stop=-1)
    finish = np.asarray(state.finish).tolist()
    ended = finish.index(DEAD_END)
    assert finish == [DEAD_END if g is SHORT else OUT_OF_BUDGET for g in OF_ROW]
    assert TOY.text(texts(state)[ended]) == b"abc"
    assert np.isfinite(np.asarray(state.stats.rounds)).all()


@pytest.mark.parametrize(("drafter", "verifier"), [PAIRS[0], PAIRS[2]], ids=names)
def test_forced_tokens_are_always_accepted_and_the_state_is_that_of_the_text(drafter, verifier):
    """Round by round: drafts along a run of single tokens pass, whatever came before."""
    program = loop.Program(TARGET, DRAFTERS[drafter], verifier, PROCESSORS)
    tokens = np.zeros((len(PROMPTS), 40), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    length = jnp.asarray([len(p) for p in PROMPTS], jnp.int32)
    begin = partial(loop.start, program, jnp.asarray(tokens), length)
    state = begin(
        sampling_values=values(1.0, stop=-1), key=rng.row_keys(jnp.arange(6)), limit=length + 18
    )
    state = jax.jit(partial(loop.prefill, chunk=4))(program, state)
    advance, certain, rejected = jax.jit(loop.round), 0, 0
    for _ in range(12):
        before = np.asarray(state.processors[0])
        state, round_ = advance(program, state)
        count, kept = np.asarray(round_.count), np.asarray(round_.verdict.num_accepted)
        going = np.flatnonzero(count)
        sure = sure_run(before[going], np.asarray(round_.draft.tokens)[going], 3)
        assert (kept[going] >= sure).all()
        certain += sure.sum()
        rejected += (np.asarray(round_.draft.valid).sum(1) > kept)[going].sum()
        for row, text in enumerate(texts(state)):
            if OF_ROW[row] is not None:
                expected = START[row] + follow(OF_ROW[row], text)
                assert np.asarray(state.processors[0])[row] == expected
    assert certain > 10
    assert rejected > 3


def sure_run(states, drafts, depth):
    """How many draft tokens of each row are the single allowed ones from its state on."""
    run = np.zeros(len(states), int)
    classes, table = map(np.asarray, (CONSTRAINT.automaton.classes, CONSTRAINT.automaton.table))
    for row, state in enumerate(states):
        while run[row] < depth and CONSTRAINT.only[state] >= 0:
            assert drafts[row, run[row]] == CONSTRAINT.only[state]
            state = table[state, classes[drafts[row, run[row]]]]
            run[row] += 1
    return run


def test_more_tokens_a_pass_than_without():
    rounds = {
        drafts: np.asarray(run(drafter, Token(), 1.0, stop=-1).stats.rounds)
        for drafts, drafter in {"forced": DRAFTERS["ngram"], "alone": NGram(3)}.items()
    }
    row = OF_ROW.index(RUNS)
    assert rounds["forced"][row] < rounds["alone"][row]


def p_value(drafter, verifier, rows=20_000, num=3):
    grammar = regex("(?:a|bc|cab|b(?:aa)+)*", TOY)
    constraint, start = join([grammar], V, least=8)
    processors = (constraint, *sampling.FILTERS)
    law = sequence_law(TARGET, PROMPTS[0], num, values(1.0, -1, start), processors)
    assert (law > 0).sum() > 20
    program = loop.Program(TARGET, DRAFTERS[drafter], verifier, processors)
    every = values(1.0, -1, np.repeat(start, rows))
    return chi_square_p(sequence_counts(program, PROMPTS[0], num, rows, values=every), law)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    PAIRS[1::2],
    ids=names,
)
def test_the_law_under_a_grammar_is_kept(drafter, verifier):
    assert p_value(drafter, verifier) > 1e-6


@pytest.mark.slow
def test_finds_a_run_recorded_with_the_law_of_the_other_drafter(monkeypatch):
    jax.clear_caches()
    monkeypatch.setattr(
        "specjax.drafters.first_of._with_law",
        lambda draft, like: draft.replace(probs=like.probs if draft.probs is None else draft.probs),
    )
    assert p_value("model", Block()) < 1e-6
    jax.clear_caches()
