"""A draft model's own cache: it may lag behind, catches up, and never holds what was rejected."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from specjax import loop, rng
from specjax.drafters import DraftModel, Plain
from specjax.loop import Program
from specjax.testing import TableLM
from specjax.testing.statistics import decode, sampling_values
from specjax.verify import Coupled, Token

K, ROUNDS = 3, 200
TARGET = TableLM.random(jax.random.key(0), 6)
OTHER = TableLM.random(jax.random.key(1), 6)
PROMPTS = [[1], [2, 3, 4, 5, 1, 2], [5] * 13, [0], [4, 1], [3, 3, 2]]
GREEDY_AND_SAMPLED = sampling_values(6).replace(temperature=jnp.asarray([0, 0, 0, 1.0, 1, 1]))


def test_a_target_that_drafts_for_itself_is_always_right():
    """Greedy and sampled rows, from prompts of one token and of many, in one batch."""
    program = Program(TARGET, DraftModel(TARGET, K), Token())
    state = decode(program, PROMPTS, ROUNDS * (K + 1), values=GREEDY_AND_SAMPLED)
    want = np.zeros((K + 1, K + 1))
    want[K, K] = ROUNDS
    np.testing.assert_array_equal(state.stats.outcomes, np.broadcast_to(want, (6, K + 1, K + 1)))
    assert state.drafted.sum(1).tolist() == [ROUNDS * K] * 6


@partial(jax.jit, static_argnames="budget")
def begin(program, tokens, length, *, budget):
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=GREEDY_AND_SAMPLED,
        key=rng.row_keys(jnp.arange(6, dtype=jnp.uint32)),
        limit=length + budget,
    )
    return loop.prefill(program, state, chunk=4)


run_round = jax.jit(loop.round)


def rounds(program, num, budget=40):
    """States before each of ``num`` rounds and after the last."""
    tokens = np.zeros((6, 60), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    length = jnp.asarray([len(p) for p in PROMPTS], jnp.int32)
    state = begin(program, jnp.asarray(tokens), length, budget=budget)
    for _ in range(num):
        yield state
        state, _ = run_round(program, state)
    yield state


def with_cap(state, cap):
    return state.replace(cap=jnp.resize(jnp.asarray(cap, jnp.int32), 6))


SELF = Program(TARGET, DraftModel(TARGET, K, catch_up=4), Token())


def test_after_full_acceptance_the_cache_lags_by_two():
    for number, state in enumerate(rounds(SELF, 4)):
        lag = state.context.length - state.drafter.synced
        assert number == 0 or lag.tolist() == [2] * 6


def test_rows_that_did_not_draft_for_a_while_catch_up():
    """Row i does not draft in rounds 1..i; every draft before and after is fully accepted."""
    *_, state = rounds(SELF, 1)
    for number in range(1, 8):
        cap = np.where(number <= np.arange(6), 0, K)
        before = state.stats.outcomes
        state, _ = run_round(SELF, with_cap(state, cap))
        gained = np.asarray(state.stats.outcomes - before)
        assert [gained[row, c, c] for row, c in enumerate(cap)] == [1] * 6


def test_the_cache_holds_nothing_but_committed_tokens():
    close = TableLM(TARGET.table + 0.3 * OTHER.table)
    program = Program(TARGET, DraftModel(close, K, catch_up=4), Token())
    states = list(rounds(program, 1))
    generator = np.random.default_rng(0)
    state = states[-1]
    for _ in range(9):  # rejections, caps of all sizes, finished rows
        place = np.arange(state.context.tokens.shape[1])
        synced = np.asarray(state.drafter.synced)[:, None]
        cached = np.asarray(state.drafter.cache.tokens)[:, : place.size]
        assert (synced < np.asarray(state.context.length)[:, None]).all()
        assert ((cached == np.asarray(state.context.tokens)) | (place >= synced)).all()
        state, _ = run_round(program, with_cap(state, generator.integers(0, K + 1, 6)))
    assert (state.stats.outcomes.sum((0, 1)) > 0).all()  # all acceptances from 0 to K occurred


def test_rows_beyond_the_draft_models_length_stop_drafting_and_stay_right():
    short = TableLM(OTHER.table, max_length=12)
    plain = decode(Program(TARGET, Plain(), Coupled()), PROMPTS, 20, values=GREEDY_AND_SAMPLED)
    program = Program(TARGET, DraftModel(short, K), Coupled())
    state = decode(program, PROMPTS, 20, values=GREEDY_AND_SAMPLED)
    np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
    # The draft model is never fed a position that it was not built for.
    assert (state.drafter.synced <= 12).all()
    assert not state.drafted[:, 12:].any()
    drafts = np.asarray(state.stats.nodes)
    assert (drafts[[0, 3, 4, 5]] > 0).all()
    assert drafts[2] == 0  # the prompt itself was too long
    assert state.stats.rounds[2] == 20


@struct.dataclass
class WithTokenizer(TableLM):
    """A target that knows its token map."""

    tokenizer: object = struct.field(pytree_node=False, default=None)


class TokenMap:
    def __init__(self, **vocabulary):
        self.vocabulary = vocabulary


def test_another_vocabulary_is_refused_by_name():
    with pytest.raises(ValueError, match=r"drafter: .* 5 tokens, the target 6"):
        DraftModel(TableLM(jnp.zeros((5, 5, 5)))).validate(TARGET)


def test_another_token_map_of_the_same_size_is_refused():
    ours, theirs = (WithTokenizer(TARGET.table, tokenizer=TokenMap(a=x)) for x in (0, 1))
    with pytest.raises(ValueError, match="drafter: .* token map"):
        DraftModel(ours).validate(theirs)


def test_a_vocabulary_padded_to_another_size_goes_with_the_same_token_map():
    ours = WithTokenizer(jnp.zeros((8, 8, 8)), tokenizer=TokenMap(a=0))
    theirs = WithTokenizer(TARGET.table, tokenizer=TokenMap(a=0))
    DraftModel(ours).validate(theirs)


def test_a_draft_model_that_lacks_tokens_still_gives_the_targets_text():
    small = TableLM.random(jax.random.key(7), 4)
    values = sampling_values(6, temperature=0.0)
    plain = decode(Program(TARGET, Plain(), Coupled()), PROMPTS, 20, values=values)
    program = Program(TARGET, DraftModel(small, K), Token())
    state = decode(program, PROMPTS, 20, values=values)
    np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
    assert (state.stats.nodes > 0).all()
