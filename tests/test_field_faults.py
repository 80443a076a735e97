"""Faults that users of other systems reported, by the kinds of the plan's list of twelve.

Here are those that no other file guards: weights (kind 8) are in test_weights and test_io_*,
pieces of a stream (10) in test_api, retraces (11) in test_compile, counters (12) in test_metrics,
stops and budgets one by one (3) and rounds without drafts (9) in test_loop.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hand_drafters import Scripted, counting_lm

from specjax import loop, rng, tree
from specjax.drafters import DraftModel, Plain
from specjax.loop import Program
from specjax.testing import TableLM
from specjax.testing.statistics import decode, sampling_values
from specjax.types import Draft, Sampling
from specjax.verify import Block, Coupled, Token

V, K = 6, 3
TARGET = TableLM.random(jax.random.key(0), V)
OTHER = TableLM.random(jax.random.key(1), V)
RATIO_RULES = [Token(), Block()]
EVERY = [*RATIO_RULES, Coupled()]


def names(verifier):
    return type(verifier).__name__


def chain(tokens, probs=None, valid=True):
    """A draft of one row."""
    tokens = jnp.asarray([tokens], jnp.int32)
    valid = jnp.broadcast_to(jnp.asarray(valid), tokens.shape)
    probs = None if probs is None else jnp.asarray([probs])
    return Draft(tokens, tree.chain_parents(*tokens.shape), valid, probs)


# 1. Law.


@partial(jax.jit, static_argnames="batch")
def first_round(program, values, batch):
    """What the first round did, after a prompt of the one token 2."""
    state = loop.start(
        program,
        jnp.full((batch, 10), 2, jnp.int32),
        jnp.ones(batch, jnp.int32),
        sampling_values=values,
        key=rng.row_keys(jnp.arange(batch, dtype=jnp.uint32)),
        limit=jnp.full(batch, 10, jnp.int32),
    )
    return loop.round(program, state)[1]


def processed(logits, temperature, top_k):
    """Law after temperature and top-k, in numpy."""
    logits = np.asarray(logits, np.float64) / temperature
    kept = np.where(logits >= np.sort(logits)[-top_k], logits, -np.inf)
    weight = np.exp(kept - kept.max())
    return weight / weight.sum()


@pytest.fixture(scope="module")
def watched():
    values = sampling_values(64, temperature=0.7, top_k=4)
    return first_round(Program(TARGET, DraftModel(OTHER, K), Token()), values, 64)


def test_both_sides_are_processed_alike_and_judged_node_by_node(watched):
    """q is the law drawn from, and p of node i is the target's law after node i, not i - 1."""
    for row in range(64):
        text = [0, 2, *watched.draft.tokens[row].tolist()]
        for node in range(K + 1):
            pair = tuple(text[node : node + 2])
            p = processed(TARGET.table[pair], 0.7, 4)
            np.testing.assert_allclose(watched.p[row, node], p, atol=1e-6)
            if node < K:
                q = processed(OTHER.table[pair], 0.7, 4)
                np.testing.assert_allclose(watched.draft.probs[row, node], q, atol=1e-6)


def test_the_first_draft_token_is_verified_too(watched):
    kept = np.asarray(watched.verdict.num_accepted)
    first = np.asarray(watched.draft.tokens[:, 0])
    p, q = (np.asarray(x)[np.arange(64), 0, first] for x in (watched.p, watched.draft.probs))
    accepted = np.asarray(watched.coins)[:, 0] * q < p
    np.testing.assert_array_equal(kept > 0, accepted)
    assert 0 < accepted.sum() < 64


def test_every_round_takes_fresh_coins(watched):
    assert len(np.unique(watched.coins)) == watched.coins.size


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_an_empty_residual_gives_no_nan(rule):
    p = jnp.asarray([[[0.25, 0.75], [0.5, 0.5]]])
    verdict = rule.accept(chain([1], p[0, :1]), p, jnp.asarray([[1.0]]))  # no uniform is 1
    assert np.isfinite(verdict.last).all()
    np.testing.assert_allclose(verdict.last.sum(-1), 1)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_a_residual_is_normalised_not_put_through_a_softmax(rule):
    p = jnp.asarray([[[0.5, 0.375, 0.125], [0.2, 0.3, 0.5]]])
    verdict = rule.accept(chain([2], [[0.125, 0.125, 0.75]]), p, jnp.asarray([[0.9]]))
    np.testing.assert_allclose(verdict.last, [[0.6, 0.4, 0]], atol=1e-6)


@pytest.mark.parametrize("rule", EVERY, ids=names)
def test_a_law_of_nothing_accepts_nothing_and_leaves_nothing(rule):
    """Not even the token 0, which the argmax of nothing would be."""
    p = jnp.zeros((1, 2, 3))
    coins = jnp.zeros((1, 2), jnp.int32) if rule.coupled else jnp.zeros((1, 1))
    verdict = rule.accept(chain([0]), p, coins)
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.last.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
@pytest.mark.parametrize(("coin", "accepted"), [(0.49, 1), (0.51, 0)])
def test_a_draft_into_a_dead_end_is_judged_as_any_other(rule, coin, accepted):
    """q = .4 and p = .2 of a token after which nothing is allowed."""
    q = [[0.4, 0.6, 0.0], [0.0, 0.0, 0.0]]
    p = jnp.asarray([[[0.2, 0.1, 0.7], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    verdict = rule.accept(chain([0, 0], q, [True, False]), p, jnp.asarray([[coin, coin]]))
    assert verdict.num_accepted.tolist() == [accepted]
    np.testing.assert_allclose(verdict.last[0], [0, 0, 0] if accepted else [0, 0, 1], atol=1e-6)


# 2. Greedy, and temperatures next to it.

TINY = Sampling(
    temperature=jnp.asarray([0.0, 1e-6, 1e-30, 0.0, 1e-6, 1.0], jnp.float32),
    top_k=jnp.asarray([0, 0, 0, 3, 2, 1], jnp.int32),
    top_p=jnp.asarray([1, 1, 1, 0.5, 1, 1], jnp.float32),
    min_p=jnp.asarray([0, 0, 0, 0, 0.5, 0], jnp.float32),
    stop_ids=jnp.full((6, 1), -1, jnp.int32),
)
PROMPTS = [[1, 2]] * 6


@pytest.fixture(scope="module")
def greedy():
    """Plain greedy decoding, in every row the same."""
    values = sampling_values(6, temperature=0.0)
    return decode(Program(TARGET, Plain(), Coupled()), PROMPTS, 12, values=values)


@pytest.mark.parametrize("verifier", [Block(), Coupled()], ids=names)
def test_temperature_zero_and_almost_zero_are_greedy_and_no_nan(greedy, verifier):
    state = decode(Program(TARGET, DraftModel(OTHER, K), verifier), PROMPTS, 12, values=TINY)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
@pytest.mark.parametrize("coin", [0.0, 0.5, 0.999999])
def test_greedy_is_judged_by_equality_whatever_the_coin(rule, coin):
    p = jnp.broadcast_to(jnp.asarray([0.0, 1.0, 0.0]), (1, 2, 3))
    for token, accepted in ((1, 1), (2, 0)):
        verdict = rule.accept(chain([token]), p, jnp.asarray([[coin]]))
        assert verdict.num_accepted.tolist() == [accepted]
        assert verdict.last.tolist() == [[0, 1, 0]]


# 4. Batch.


def test_rows_with_a_seed_keep_their_text_beside_rows_with_another(greedy):
    program = Program(TARGET, DraftModel(OTHER, K), Block())
    seeds = [[5, 1, 2, 5, 3, 4], [8, 9, 5, 7, 6, 5]]
    one, other = (decode(program, PROMPTS, 12, seeds=s, values=sampling_values(6)) for s in seeds)
    mine = one.context.tokens[0].tolist()
    assert one.context.tokens[3].tolist() == mine
    assert other.context.tokens[2].tolist() == other.context.tokens[5].tolist() == mine
    assert len({tuple(row) for row in np.asarray(other.context.tokens).tolist()}) > 2


# 5. Options silently dropped.


@pytest.mark.parametrize("verifier", [Block(), Coupled()], ids=names)
@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_every_filter_at_its_strictest_is_greedy(greedy, verifier, option):
    values = sampling_values(6, temperature=1.0, **option)
    state = decode(Program(TARGET, DraftModel(OTHER, K), verifier), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


# 6. Vocabulary.


@struct.dataclass
class Padded(TableLM):
    """A head with two columns more than there are tokens, and the largest logits in them."""

    @property
    def vocab_size(self):
        return self.table.shape[-1] - 2


def test_ids_that_only_pad_the_head_are_never_emitted(greedy):
    padded = Padded(jnp.pad(TARGET.table, ((0, 2),) * 3, constant_values=50.0))
    values = sampling_values(6, temperature=0.0)
    state = decode(Program(padded, Plain(), Coupled()), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


# 7. Cache: drafts look further than the text may go.


def test_drafts_beyond_the_last_token_that_fits_do_no_harm():
    """The capacity holds prompt and budget exactly, and every draft looks beyond it."""
    script = jnp.broadcast_to(jnp.arange(8, dtype=jnp.int32), (2, 8))
    program = Program(counting_lm(8), Scripted(script, 4), Token())
    state = decode(program, [[0], [0, 1, 2, 3]], 4)
    assert state.context.tokens.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], list(range(8))]
    assert state.cache.tokens[1, :7].tolist() == list(range(7))
    assert state.stats.rounds.tolist() == [1, 1]
