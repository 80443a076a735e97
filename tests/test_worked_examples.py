"""The worked examples of the literature and of the plan, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import planted_faults as faults
import pytest
from hand_drafters import Scripted, counting_lm

from specjax import loop, rng
from specjax.experts import expected_reads
from specjax.loop import Program
from specjax.metrics import Metrics, speedup
from specjax.testing.statistics import sampling_values
from specjax.types import Draft
from specjax.verify import Block, Token

RATIO_RULES = [Token(), Block()]


def names(verifier):
    return type(verifier).__name__


def one_draft(q, p, token, coin):
    """Judge one drafted token: laws over a vocabulary, the bonus law being uniform."""
    q, p = jnp.asarray(q), jnp.asarray(p)
    draft = Draft(
        tokens=jnp.full((1, 1), token, jnp.int32),
        parent=jnp.zeros((1, 1), jnp.int32),
        valid=jnp.ones((1, 1), bool),
        probs=q[None, None],
    )
    laws = jnp.stack([p, jnp.full_like(p, 1 / len(p))])[None]
    return draft, laws, jnp.full((1, 1), coin, jnp.float32)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_a_token_that_the_target_likes_more_is_always_accepted(rule):
    """q(the) = .3, p(the) = .4: accepted for every u."""
    for coin in (0.0, 0.5, 0.999999):
        verdict = rule.accept(*one_draft([0.3, 0.7], [0.4, 0.6], 0, coin))
        assert verdict.num_accepted.tolist() == [1]


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
@pytest.mark.parametrize(("coin", "accepted"), [(0.7, 0), (0.49, 1), (0.5, 0)])
def test_a_token_twice_too_likely_is_accepted_half_the_time(rule, coin, accepted):
    """q(quick) = .2, p(quick) = .1."""
    laws = ([0.25, 0.75], [0.125, 0.875])  # the same ratio, exact in binary
    verdict = rule.accept(*one_draft(*laws, 0, coin))
    assert verdict.num_accepted.tolist() == [accepted]


Q, P = np.array([0.5, 0.2, 0.3]), np.array([0.3, 0.1, 0.6])


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_the_residual_after_every_rejection_is_brown(rule):
    for token in (0, 1):
        verdict = rule.accept(*one_draft(Q, P, token, 0.99))
        assert verdict.num_accepted.tolist() == [0]
        np.testing.assert_allclose(verdict.last[0], [0, 0, 1], atol=1e-6)


def emitted(rule):
    """Law of the first token: accepted with min(1, p/q), else drawn from the rule's last law."""
    law = np.zeros(3)
    for token in range(3):
        threshold = min(1.0, P[token] / Q[token])
        verdict = rule.accept(*one_draft(Q, P, token, 1.0 if threshold < 1 else 0.999999))
        rest = np.asarray(verdict.last[0]) if threshold < 1 else np.zeros(3)
        law += Q[token] * (threshold * np.eye(3)[token] + (1 - threshold) * rest)
    return law


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        (Token(), [0.3, 0.1, 0.6]),
        (Block(), [0.3, 0.1, 0.6]),
        (faults.ResamplesFromTarget(), [0.39, 0.13, 0.48]),
        (faults.AbsoluteResidual(), [0.4, 0.15, 0.45]),
        (faults.ResidualWithoutToken(), [0.333, 0.129, 0.538]),
    ],
    ids=lambda x: names(x) if not isinstance(x, list) else "",
)
def test_the_law_of_the_quick_brown_example_right_and_wrong(rule, law):
    np.testing.assert_allclose(emitted(rule), law, atol=6e-4)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_the_acceptance_rate_is_one_minus_the_total_variation(rule):
    """alpha = .7, counted over a grid of coins."""
    coins = (np.arange(1000) + 0.5) / 1000
    rate = 0.0
    for token in range(3):
        one = one_draft(Q, P, token, 0.0)
        draft, laws, _ = jax.tree.map(lambda x: jnp.repeat(x, 1000, axis=0), one)
        verdict = rule.accept(draft, laws, jnp.asarray(coins, jnp.float32)[:, None])
        rate += Q[token] * float(verdict.num_accepted.mean())
    assert rate == pytest.approx(0.7, abs=1e-3)
    assert rate == pytest.approx(1 - np.abs(P - Q).sum() / 2, abs=1e-3)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_equal_laws_never_reject_and_disjoint_laws_always_do(rule):
    for token in range(3):
        same = rule.accept(*one_draft(P, P, token, 0.999999))
        assert same.num_accepted.tolist() == [1]
    apart = rule.accept(*one_draft([1.0, 0.0, 0.0], [0.0, 0.25, 0.75], 0, 0.0))
    assert apart.num_accepted.tolist() == [0]
    np.testing.assert_allclose(apart.last[0], [0, 0.25, 0.75])


# Whole rounds: a target that counts on from 0, and drafts written by hand.

SCRIPTS = [
    [1, 2, 3, 7, 7],  # K = 5, three accepted
    [1, 2, 5, 6, -1],  # K = 4, two accepted
    [1, 5, 6, 7, -1],  # K = 4, one accepted
    [1, 2, 3, 4, -1],  # K = 4, all accepted
    [1, 7, -1, -1, -1],  # K = 2, one accepted
]


@pytest.fixture(scope="module")
def states():
    """After the first round and after the second, which has no drafts."""
    script = np.full((5, 20), -1, np.int32)
    script[:, 1:6] = SCRIPTS
    program = Program(counting_lm(8), Scripted(jnp.asarray(script), 5), Token())

    state = jax.jit(begin)(program)
    run_round = jax.jit(loop.round)
    first, _ = run_round(program, state)
    return first, run_round(program, first)[0]


def begin(program):
    """Five rows whose prompt is the token 0."""
    return loop.start(
        program,
        jnp.zeros((5, 20), jnp.int32),
        jnp.ones(5, jnp.int32),
        sampling_values=sampling_values(5, temperature=0.0),
        key=rng.row_keys(jnp.arange(5, dtype=jnp.uint32)),
        limit=jnp.full(5, 20, jnp.int32),
    )


def metrics_of(state, rows):
    return Metrics.from_stats(jax.tree.map(lambda x: x[jnp.asarray(rows)], state.stats))


def test_one_accepted_and_one_rejected_emit_two_tokens(states):
    assert states[0].context.tokens[4, :4].tolist() == [0, 1, 2, 0]
    assert states[0].context.length[4] == 1 + 2


def test_two_of_four_accepted_and_a_correction_make_three_tokens(states):
    first, _ = states
    assert first.context.length[1] == 1 + 3
    assert first.context.tokens[1, :5].tolist() == [0, 1, 2, 3, 0]


def test_the_rejected_entry_stays_until_the_correction_is_fed(states):
    """Slots 0..n+1 are committed; slot n+2 is scratch. Here n = 1."""
    first, second = states
    assert first.cache.tokens[1, :4].tolist() == [0, 1, 2, 5]
    assert second.cache.tokens[1, :4].tolist() == [0, 1, 2, 3]


def test_four_of_four_accepted_make_five_tokens(states):
    first, _ = states
    assert first.context.length[3] == 1 + 5
    assert first.context.tokens[3, :6].tolist() == [0, 1, 2, 3, 4, 5]


def test_three_of_five_accepted_speed_up_by_3_733(states):
    first, _ = states
    metrics = metrics_of(first, [0])
    assert metrics.num_tokens == 4
    assert first.cache.tokens[0, :7].tolist() == [0, 1, 2, 3, 7, 7, 0]  # the pass was fed six
    gain = speedup(metrics.mean_acceptance_length, 5, 1 / 70, 1.0)
    assert gain == pytest.approx(3.733, abs=5e-4)


def test_the_three_rounds_pooled(states):
    metrics = metrics_of(states[0], [0, 1, 2])
    assert metrics.num_rounds == 3
    assert metrics.num_draft_tokens == 13
    assert metrics.num_accepted_tokens == 6
    assert metrics.num_tokens == 9
    assert metrics.mean_acceptance_length == 3
    assert metrics.draft_acceptance_rate == 6 / 13


def test_six_positions_read_41_of_128_experts():
    """Eight experts a position; plain decoding reads eight, so a pass of six reads five times."""
    assert expected_reads(128, 8, 6) == pytest.approx(41.1, abs=0.05)
    assert expected_reads(128, 8, 1) == pytest.approx(8)
