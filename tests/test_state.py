"""L3: what the state holds after any rounds is what the text says, and a row is its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import planted_faults as faults
import pytest

from specjax import loop
from specjax.drafters import DraftModel, NGram
from specjax.loop import Program
from specjax.testing import TableLM, tiny_lm
from specjax.testing.statistics import decode, sampling_values
from specjax.verify import Block, Coupled, Token

V = 5
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
PROMPTS = [[1], [2, 3], [4, 0, 1, 2, 3], [1, 1], [3, 4, 3, 4, 3, 4, 3], [2], [0, 0, 1], [1, 2]]


def committed(cache, length):
    """Tokens of the slots below ``length`` in a table's cache."""
    tokens = np.asarray(cache.tokens)
    return [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]


def text(state, upto):
    tokens = np.asarray(state.context.tokens)
    return [row[:n].tolist() for row, n in zip(tokens, upto, strict=True)]


def run(drafter, verifier=None):
    program = Program(TARGET, drafter, verifier or Token())
    return decode(program, PROMPTS, 21, values=sampling_values(len(PROMPTS)))


@pytest.mark.parametrize("drafter", [NGram(3), DraftModel(DRAFT, 3)], ids=["ngram", "model"])
@pytest.mark.parametrize(
    "verifier", [Token(), Block(), Coupled()], ids=["token", "block", "coupled"]
)
def test_committed_slots_hold_the_text(drafter, verifier):
    state = run(drafter, verifier)
    length = np.asarray(state.context.length)
    assert committed(state.cache, length - 1) == text(state, length - 1)


def test_the_draft_cache_holds_the_text_as_far_as_it_is_synced():
    state = run(DraftModel(DRAFT, 3))
    synced = np.asarray(state.drafter.synced)
    assert committed(state.drafter.cache, synced) == text(state, synced)
    assert (np.asarray(state.context.length) - synced <= 5).all()


def test_finds_a_draft_cache_rewound_to_where_drafting_stopped():
    state = run(faults.RewindsToWhereDraftingStopped(DRAFT, 3))
    synced = np.asarray(state.drafter.synced)
    assert committed(state.drafter.cache, synced) != text(state, synced)


@pytest.mark.slow
@pytest.mark.parametrize(
    "verifier",
    [Token(), Coupled(), Block()],
    ids=["token", "coupled", "block"],
)
def test_a_row_alone_equals_the_row_in_a_batch_of_eight(verifier):
    target, draft = tiny_lm(jax.random.key(2)), tiny_lm(jax.random.key(3))
    program = Program(target, DraftModel(draft, 3), verifier)
    with jax.default_matmul_precision("highest"):
        together = np.asarray(decode(program, PROMPTS, 20, seeds=range(8)).context.tokens)
        for row in (0, 4):
            alone = decode(program, [PROMPTS[row]], 20, seeds=[row]).context.tokens
            end = len(PROMPTS[row]) + 20
            np.testing.assert_array_equal(alone[0, :end], together[row, :end])


@pytest.mark.slow
def test_poison_in_scratch_slots_changes_nothing():
    """Every slot at or beyond length - 1, of target and draft, is overwritten before it is read."""
    target = tiny_lm(jax.random.key(2))
    program = Program(target, DraftModel(tiny_lm(jax.random.key(3)), 3), Token())
    start = decode(program, PROMPTS, 0)
    start = dataclasses.replace(
        start, finish=0 * start.finish, limit=start.limit + 18, context=widen(start.context, 18)
    )
    roomy = dataclasses.replace(start, drafted=jnp.zeros(start.context.tokens.shape, bool))
    roomy = dataclasses.replace(
        roomy,
        cache=target.init_cache(8, roomy.context.tokens.shape[1] + 4),
        drafter=program.drafter.init(target, 8, roomy.context.tokens.shape[1] + 4),
    )
    advance = jax.jit(loop.advance)
    state = advance(
        program, jax.jit(loop.prefill, static_argnames="chunk")(program, roomy, chunk=4), 3
    )
    poisoned = dataclasses.replace(
        state,
        cache=poison(state.cache, state.context.length - 1),
        drafter=dataclasses.replace(
            state.drafter, cache=poison(state.drafter.cache, state.drafter.synced)
        ),
    )
    clean, dirty = advance(program, state, 20), advance(program, poisoned, 20)
    np.testing.assert_array_equal(clean.context.tokens, dirty.context.tokens)


def widen(context, extra):
    return dataclasses.replace(context, tokens=jnp.pad(context.tokens, ((0, 0), (0, extra))))


def poison(cache, first):
    def spoil(slots):
        scratch = jnp.arange(slots.shape[1], dtype=jnp.int32) >= first[:, None]
        return jnp.where(scratch[..., None, None], jnp.asarray(1e9, slots.dtype), slots)

    return jax.tree.map(spoil, cache)
