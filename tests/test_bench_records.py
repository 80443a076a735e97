"""Pooling by category is sums over sums, against numbers worked out by hand."""

import dataclasses
import json
import math

import pytest
from bench_records import PLAIN_AND_FAST, answer, record

from specjax.bench.records import Record, jsonable, summarize


def pooled(records, contestant, category):
    found = [s for s in summarize(records) if (s.contestant, s.category) == (contestant, category)]
    (summary,) = found
    return summary


def test_speeds_are_tokens_over_median_seconds():
    chat = pooled(PLAIN_AND_FAST, "fast", "chat")
    # Medians: plain 4 + 2 s, fast 2 + 2 s, of 12 tokens each.
    assert chat.tokens_per_second == pytest.approx(12 / 4)
    assert chat.speedup == pytest.approx(6 / 4)
    # Turn by turn: 6 / 4, 6 / 4 and 7 / 6.
    assert chat.speedup_range == pytest.approx((7 / 6, 6 / 4))
    every = pooled(PLAIN_AND_FAST, "fast", "all")
    assert (every.num_answers, every.num_tokens) == (3, 18)
    assert every.speedup == pytest.approx((6 + 3) / (4 + 1))
    assert pooled(PLAIN_AND_FAST, "plain", "all").speedup == 1


def test_acceptance_is_pooled_over_rounds():
    every = pooled(PLAIN_AND_FAST, "fast", "all")
    # 4 + 4 + 2 rounds kept (2 + 2) + 0 + 4 of 20 draft tokens.
    assert every.tokens_per_pass == pytest.approx(1 + 8 / 10)
    assert every.draft_acceptance_rate == pytest.approx(8 / 20)
    # Of 10 rounds 5 kept the first; of those 3 the second.
    assert every.acceptance_rate_at == pytest.approx([5 / 10, 3 / 5])
    assert pooled(PLAIN_AND_FAST, "plain", "all").tokens_per_pass == 1
    assert math.isnan(pooled(PLAIN_AND_FAST, "plain", "all").draft_acceptance_rate)


def test_answers_that_differ_are_counted_where_they_must_agree():
    assert pooled(PLAIN_AND_FAST, "fast", "all").num_differing == 1
    assert pooled(PLAIN_AND_FAST, "fast", "qa").num_differing == 0
    free = [record("plain", "x", [1.0], answer(must_agree=True))]
    free += [record("fast", "x", [1.0], answer(kept=(4, 0, 0), must_agree=False, differs_at=0))]
    summary = pooled(free, "fast", "all")
    assert (summary.num_compared, summary.num_differing) == (0, 0)


def test_rows_that_fill_a_batch_count_for_speed_alone():
    rows = [answer("a"), answer("a", repeated=True)]
    summary = pooled([record("plain", "x", [2.0], *rows)], "plain", "all")
    assert (summary.num_answers, summary.num_tokens) == (1, 4)
    assert summary.tokens_per_second == 8 / 2


def test_a_peer_is_compared_on_what_it_was_asked():
    peer = record("peer", "qa", [2.0, 2.0, 2.0], answer("c", 6, outcomes=None, num_rounds=0))
    summary = pooled([*PLAIN_AND_FAST, peer], "peer", "all")
    assert summary.speedup == pytest.approx(3 / 2)  # of the plain seconds of qa alone
    assert math.isnan(summary.tokens_per_pass)


def test_temperatures_and_batches_are_kept_apart():
    hot = [dataclasses.replace(r, temperature=1.0) for r in PLAIN_AND_FAST]
    found = summarize([*PLAIN_AND_FAST, *hot])
    assert len(found) == 2 * len(summarize(PLAIN_AND_FAST)) == 12
    assert {s.temperature for s in found[:6]} == {0.0}


def test_records_can_be_read_back():
    text = json.dumps(jsonable(PLAIN_AND_FAST), allow_nan=False)
    assert [Record.from_dict(one) for one in json.loads(text)] == PLAIN_AND_FAST
