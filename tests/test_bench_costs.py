"""What is timed is what a round does, in turns."""

import itertools
import math
from functools import partial

import jax
import numpy as np
import pytest
from hand_drafters import Branching

from specjax import compiled
from specjax.api import Decoder
from specjax.bench import Costs, compare, costs, interleaved_medians, measure_costs
from specjax.drafters import DraftModel, NGram
from specjax.models import LayerKind
from specjax.models.rope import Rope
from specjax.testing import tiny_lm

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5]


@pytest.fixture(scope="module")
def target():
    return tiny_lm(jax.random.key(0))


def test_calls_take_turns_after_a_warm_run(monkeypatch):
    # The clock is read before and after each timed call: A takes 1, 3 and 2, B always 5 seconds.
    clock = itertools.accumulate([0, 1, 0, 5, 0, 3, 0, 5, 0, 2, 0, 5])
    monkeypatch.setattr("specjax.bench.timing.time.perf_counter", lambda: next(clock))
    calls = []
    calls_of = [lambda: calls.append("A"), lambda: calls.append("B")]
    assert interleaved_medians(calls_of, repeats=3) == [2, 5]
    assert "".join(calls) == "AB" * 4


def test_a_round_costs_its_drafts_and_its_pass():
    measured = Costs(draft_length=5, draft_cost=1 / 70, pass_cost=1.0)
    assert measured.round_cost == pytest.approx(1 + 5 / 70)
    assert measured.speedup(4.0) == pytest.approx(3.733, abs=5e-4)


@pytest.mark.slow
def test_both_costs_are_measured(target):
    measured = measure_costs(Decoder(target, DraftModel(target, 3)), PROMPT, repeats=1)
    assert measured.draft_length == 3
    assert math.isfinite(measured.draft_cost)
    assert measured.draft_cost > 0
    assert measured.pass_cost > 0


def test_plain_decoding_has_no_costs(target):
    with pytest.raises(ValueError, match="decoder: has no drafter"):
        measure_costs(Decoder(target), PROMPT)
    with pytest.raises(ValueError, match="decoder: has no drafter"):
        compare(Decoder(target), PROMPT, max_new_tokens=1, seed=0)


def timed_context(decoder):
    call = decoder.prepare([PROMPT], max_new_tokens=128)
    state = compiled.begin(call.program, call.request, chunk=decoder.prefill_chunk)
    context = costs.propose_and_append(decoder.program, state)
    begin = len(PROMPT)
    assert int(context.length[0]) == begin + costs.NUM
    return np.asarray(context.tokens)[0, begin : begin + costs.NUM].tolist()


def test_the_drafts_that_are_timed_follow_each_other(target):
    """A draft model keeps up: drafting with the target itself, the drafts are its greedy text."""
    plain = Decoder(target).generate(PROMPT, max_new_tokens=costs.NUM)
    assert timed_context(Decoder(target, DraftModel(target, 3))) == plain.tokens[0]


def test_n_gram_drafts_go_round_the_period(target):
    period = itertools.cycle([6, 7, 8, 5])
    assert timed_context(Decoder(target, NGram(3))) == list(itertools.islice(period, costs.NUM))


def test_a_tree_that_wants_features_gets_them():
    sizes = {"vocab_size": 16, "hidden_size": 2, "num_heads": 1, "num_kv_heads": 1, "head_dim": 2}
    target = tiny_lm(jax.random.key(0), layers=[LayerKind(Rope(2))] * 3, **sizes)
    table = jax.random.normal(jax.random.key(1), (16, 16, 16))
    decoder = Decoder(target, Branching(table))
    call = decoder.prepare([PROMPT], max_new_tokens=8)
    begin = partial(compiled.begin, chunk=decoder.prefill_chunk)
    state = jax.eval_shape(begin, call.program, call.request)
    after = jax.eval_shape(costs.propose_and_append, decoder.program, state)
    assert after.tokens.shape == call.request.tokens.shape
