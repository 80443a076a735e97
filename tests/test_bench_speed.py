"""The model of the speed against numbers worked out by hand, with costs that are told."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from bench_records import PLAIN_AND_FAST, answer, record

from specjax import Adaptive, Decoder
from specjax.bench import speed
from specjax.bench.machine import measure_machine
from specjax.bench.speed import RoundCosts, load_of, measure_rounds, model_of
from specjax.bench.variants import Variant
from specjax.drafters import DraftModel, NGram
from specjax.testing import tiny_lm

COSTS = RoundCosts("fast", 0.5, 0.1, [2], [1.4], [2, 2, 2], per_round=True)


@pytest.fixture(scope="module")
def target():
    return tiny_lm(jax.random.key(0))


def test_decoding_alone_brings_e_over_k_c_plus_v():
    found = model_of(COSTS, PLAIN_AND_FAST, 0.0)
    assert found.acceptance_length == pytest.approx(1.8)
    assert found.round_cost == pytest.approx(2 * 0.1 + 1.4)
    assert found.predicted == pytest.approx(1.8 / 1.6)
    assert found.accepted_per_draft_cost == pytest.approx(8 / (10 * 2 * 0.1))
    assert model_of(COSTS, PLAIN_AND_FAST, 1.0) is None


def test_whole_calls_have_their_prefill_on_both_sides():
    records = [
        record("plain", "x", [5.5], answer("a", 8), prefill=1.0),
        record("fast", "x", [4.0], answer("a", 8, kept=(1, 2, 1)), prefill=1.5),
    ]
    found = model_of(COSTS, records, 0.0)
    assert found.achieved == pytest.approx((5.5 - 1.0) / (4.0 - 1.5))
    assert found.achieved_call == pytest.approx(5.5 / 4.0)
    # Plain: 1 s and 8 passes of half a second; fast: 1.5 s and 4 rounds of 1.6 passes.
    assert found.predicted_call == pytest.approx((1 + 8 * 0.5) / (1.5 + 4 * 1.6 * 0.5))
    assert found.share == pytest.approx(found.achieved / 1.25)


def test_batches_of_several_rows_are_not_modelled():
    pair = [record("plain", "x", [1.0], answer("a"), answer("b"))]
    assert model_of(COSTS, pair, 0.0) is None


def told(monkeypatch, drafts, costs):
    """Let time_passes return NUM times these seconds, by draft nodes."""

    def time_passes(decoder, prompt, widths, repeats, settings):
        assert settings == {"max_new_tokens": 128}
        return drafts * speed.NUM, [costs[width] * speed.NUM for width in widths]

    monkeypatch.setattr(speed, "time_passes", time_passes)


def test_costs_are_in_plain_passes(target, monkeypatch):
    told(monkeypatch, 0.03, {0: 0.1, 3: 0.15})
    found = measure_rounds(Variant("n", Decoder(target, NGram(3)), 3), [1, 2], 1)
    assert found.plain_seconds == pytest.approx(0.1)
    assert found.draft_cost == pytest.approx(0.1)
    assert found.round_cost(3) == found.round_cost(0) == pytest.approx(0.3 + 1.5)


def test_rounds_of_several_widths_are_charged_for_their_own(target, monkeypatch):
    told(monkeypatch, 0.08, {0: 0.1, 2: 0.12, 4: 0.15})
    decoder = Decoder(target, NGram(4), widths=[0, 2])
    found = measure_rounds(Variant("n", decoder, 4), [1, 2], 1)
    assert [found.round_cost(depth) - 0.8 for depth in range(5)] == pytest.approx(
        [1.0, 1.2, 1.2, 1.5, 1.5]
    )


def test_a_model_that_adapts_pays_for_what_it_drafts(target, monkeypatch):
    told(monkeypatch, 0.08, {0: 0.1, 2: 0.12, 4: 0.15})
    policy = Adaptive(jnp.asarray([1, 1.2, 1.2, 1.5, 1.5], jnp.float32), jnp.float32(0.2))
    for given, drafting in ((None, [0.8] * 3), (policy, [0.0, 0.2, 0.4])):
        decoder = Decoder(target, DraftModel(target, 4), widths=[0, 2], policy=given)
        found = measure_rounds(Variant("m", decoder, 4), [1, 2], 1)
        costs = [found.round_cost(depth) for depth in range(3)]
        assert [a - b for a, b in zip(costs, drafting, strict=True)] == pytest.approx([1, 1.2, 1.2])


def test_weights_that_are_looked_up_are_not_read(target):
    load = load_of(Decoder(target))
    weights = target.weights
    size = sum(leaf.size for leaf in jax.tree.leaves((weights.layers, weights.norm, weights.head)))
    assert load.weight_bytes == 4 * size
    assert load.operations == 2 * size
    assert load.intensity(4) == pytest.approx(2.0)


def test_the_best_of_a_few_runs_is_what_the_machine_can_do():
    # Sums take 3, 2 and 4 seconds, products 8, 9 and 8.
    clock = itertools.accumulate([0, 3, 0, 2, 0, 4, 0, 8, 0, 9, 0, 8])
    found = measure_machine(repeats=3, clock=lambda: float(next(clock)), num_bytes=2**16)
    assert found.bandwidth == 2**16 / 2
    assert found.operations == 4 * 2 * 1024**3 / 8
    assert speed.PassLoad(2**14, 2**13).bandwidth_share(1.0, found) == pytest.approx(0.5)
