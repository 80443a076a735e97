"""Metrics on counters worked out by hand."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.commit import tally
from specjax.metrics import Metrics, expected_acceptance_length, speedup
from specjax.types import Draft, Stats

K = 4


FAR = 99


def counted(*rounds, batch=1, room=FAR):
    """Counters after rounds of (drafted, offered, kept) tokens: one triple, or one a row.

    ``room`` is how many tokens the budget still allowed.
    """
    stats = Stats(
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((batch, K + 1, K + 1), jnp.int32),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, jnp.int32),
    )
    for triples in rounds:
        drafted, offered, kept = np.broadcast_to(triples, (batch, 3)).astype(np.int32).T
        valid = jnp.asarray(np.arange(K) < drafted[:, None])
        chain = jnp.broadcast_to(jnp.arange(K, dtype=jnp.int32), (batch, K))
        draft = Draft(jnp.zeros((batch, K), jnp.int32), chain, valid)
        left = jnp.full(batch, room, jnp.int32)
        stats = jax.jit(tally)(stats, draft, jnp.asarray(offered), jnp.asarray(kept), left)
    return stats


def test_rounds_are_pooled():
    metrics = Metrics.from_stats(counted((4, 4, 4), (4, 3, 3), (4, 2, 2), (1, 1, 1)))
    assert metrics.num_rounds == 4
    assert metrics.num_draft_tokens == 13
    assert metrics.num_accepted_tokens == 6
    assert metrics.num_tokens == 10
    assert metrics.mean_acceptance_length == 1 + 6 / 4
    assert metrics.draft_acceptance_rate == 6 / 13


def test_a_full_and_an_empty_round():
    metrics = Metrics.from_stats(counted((4, 5, 5), (0, 1, 1)))
    assert metrics.acceptance_histogram == [1, 0, 0, 0, 1]
    assert metrics.draft_length_histogram == [1, 0, 0, 0, 1]
    assert metrics.acceptance_rate_at == [1, 1, 1, 1]
    assert metrics.draft_acceptance_rate == 1


def test_the_rate_at_a_position_is_given_that_it_was_judged():
    # Accepted 0, 1, 1 and 2 of 4, and 2 of 2.
    metrics = Metrics.from_stats(counted((4, 1, 1), (4, 2, 2), (4, 2, 2), (4, 3, 3), (2, 3, 3)))
    rates = metrics.acceptance_rate_at
    assert rates[:3] == [4 / 5, 2 / 4, 0 / 1]
    assert math.isnan(rates[3])


def test_a_round_that_a_stop_cut_is_judged_only_as_far_as_it_was_kept():
    metrics = Metrics.from_stats(counted((4, 5, 2), (4, 5, 1)))
    assert metrics.num_tokens == 3
    assert metrics.num_clipped_tokens == 3 + 4
    assert metrics.draft_length_histogram == [1, 1, 0, 0, 0]
    assert metrics.acceptance_rate_at[0] == 1  # the stop is not held against the drafter
    assert metrics.num_draft_tokens == 8  # but what was drafted was drafted


@pytest.mark.parametrize(
    ("offered", "room", "judged", "kept"), [(5, 2, 1, 1), (2, 3, 2, 1), (2, 2, 1, 1), (1, 3, 2, 0)]
)
def test_a_round_that_the_budget_cut_is_judged_as_far_as_the_budget_could_show(
    offered, room, judged, kept
):
    """Of four drafts; a rejection counts where the budget would have shown an acceptance."""
    metrics = Metrics.from_stats(counted((4, offered, min(offered, room)), room=room))
    assert metrics.outcomes[judged, kept] == metrics.outcomes.sum() == 1
    assert metrics.num_clipped_tokens == max(offered - room, 0)


def test_a_round_that_emits_nothing_is_none():
    metrics = Metrics.from_stats(counted((0, 0, 0), (4, 3, 3)))
    assert metrics.num_rounds == 1
    assert metrics.mean_acceptance_length == 3


def test_rows_are_pooled_or_taken_alone():
    stats = counted([(4, 5, 5), (4, 1, 1)], [(4, 3, 3), (0, 0, 0)], batch=2)
    pooled, one, other = Metrics.from_stats(stats), *(Metrics.from_stats(stats, r) for r in (0, 1))
    assert (pooled.num_rounds, one.num_rounds, other.num_rounds) == (3, 2, 1)
    assert pooled.num_accepted_tokens == one.num_accepted_tokens + other.num_accepted_tokens == 6
    assert one.mean_acceptance_length == 4
    assert pooled.mean_acceptance_length == 3


def test_a_rate_over_nothing_is_nan():
    metrics = Metrics.from_stats(counted())
    rates = [
        metrics.mean_acceptance_length,
        metrics.draft_acceptance_rate,
        metrics.accepted_per_draft_cost,
        metrics.target_passes_per_token,
        metrics.tokens_per_second,
        *metrics.acceptance_rate_at,
        *metrics.time_between_tokens.values(),
    ]
    assert all(math.isnan(rate) for rate in rates)


def test_costs_and_times():
    metrics = Metrics.from_stats(
        counted((4, 4, 4), (4, 3, 3)), draft_cost=0.25, seconds=2.0, gaps=(0.0, 0.0, 1.0, 1.0)
    )
    assert metrics.accepted_per_draft_cost == 5 / (8 * 0.25)
    assert metrics.target_passes_per_token == (2 + 8 * 0.25) / 7
    assert metrics.tokens_per_second == 3.5
    times = metrics.time_between_tokens
    assert (times["mean"], times["p50"]) == (0.5, 0.5)
    assert times["p99"] == 1


def test_a_free_drafter_has_no_rate_per_cost():
    metrics = Metrics.from_stats(counted((4, 4, 4)), draft_cost=0.0)
    assert math.isnan(metrics.accepted_per_draft_cost)
    assert metrics.target_passes_per_token == 1 / 4


def test_the_dictionary_is_json_without_nan():
    metrics = Metrics.from_stats(counted((4, 4, 4)))
    text = json.dumps(metrics.to_dict(), allow_nan=False)
    read = json.loads(text)
    assert read["mean_acceptance_length"] == 4
    assert read["tokens_per_second"] is None
    public = {n for n in vars(Metrics) if isinstance(vars(Metrics)[n], property)}
    fields = {f.name for f in dataclasses.fields(Metrics)}
    assert public | (fields - {"outcomes", "gaps", "num_experts_read"}) == set(read)


@pytest.mark.parametrize(
    ("rate", "length", "gain"), [(0.6, 2.306, 1.65), (0.7, 2.773, 1.98), (0.8, 3.362, 2.40)]
)
def test_expected_length_and_speedup_of_a_constant_rate(rate, length, gain):
    expected = expected_acceptance_length([rate] * 4)
    assert expected == pytest.approx(length, abs=5e-4)
    assert expected == pytest.approx((1 - rate**5) / (1 - rate))
    assert speedup(expected, 4, 0.1, 1.0) == pytest.approx(gain, abs=5e-3)


@pytest.mark.parametrize(("rate", "cost", "best"), [(0.6, 0.1, 3), (0.8, 0.05, 8), (0.9, 0.05, 13)])
def test_the_best_draft_length(rate, cost, best):
    gains = [speedup(expected_acceptance_length([rate] * k), k, cost, 1.0) for k in range(1, 30)]
    assert 1 + int(np.argmax(gains)) == best
