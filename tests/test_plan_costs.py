"""What passes cost, against numbers worked by hand, and what speculation is said to bring."""

import dataclasses

import pytest
from toy_plan import GLOBAL, toy_config, toy_machine, toy_setup

from specjax import metrics
from specjax.experts import expected_reads
from specjax.models import Experts
from specjax.models.layers import parameters
from specjax.plan import predict
from specjax.plan.chips import CHIPS, find_machine
from specjax.plan.costs import Cost
from specjax.plan.public import PUBLIC, find_config
from specjax.plan.setup import Setup

SPARSE = toy_config(
    layers=(dataclasses.replace(GLOBAL, sparse=True),) * 2,
    experts=Experts(num=8, num_chosen=2, size=16),
)
WINDOWED = toy_config(layers=(dataclasses.replace(GLOBAL, window=16), GLOBAL))


def test_a_plain_step_costs_what_is_worked_by_hand():
    # Attention reads one block of 128 slots, of 2 layers, 16 channels of keys and 16 of values.
    assert predict.target_pass(toy_setup(), 1).cost == Cost(
        weights=4 * (15_488 + 32 + 2048),  # layers, one embedding, the head
        cache=4 * 2 * 128 * 32,
        written=4 * 2 * 32,
        laws=6 * 4 * 64,
        operations=2 * 15_488 + 2 * 4 * 128 * 4 * 8 + 2 * 2048,
    )


def test_each_part_of_a_pass_waits_for_memory_or_for_arithmetic():
    narrow, wide = (predict.target_pass(toy_setup(), width) for width in (1, 16))
    assert (narrow.arithmetic, narrow.bound) == (0, "memory")
    assert narrow.memory == pytest.approx(narrow.cost.bytes / 1e9)
    # Over 16 positions layers and attention compute for longer than they read; the head does not.
    assert wide.arithmetic == pytest.approx((16 * 2 * 15_488 + 16 * 4 * 2 * 128 * 32) / 4e9)
    assert wide.memory == pytest.approx(4 * (2048 + 6 * 64 * 16) / 1e9)
    assert wide.bound == "arithmetic"


@pytest.mark.parametrize("target", [toy_config(), WINDOWED, SPARSE], ids=["", "windowed", "sparse"])
def test_the_cache_that_a_pass_reads_does_not_grow_with_the_draft_length(target):
    read = {
        predict.target_pass(toy_setup(target=target, draft_length=k, chunk=16), k + 1).cost.cache
        for k in range(1, 11)
    }
    assert len(read) == 1


def test_a_window_bounds_what_is_read():
    read = predict.target_pass(toy_setup(target=WINDOWED), 1).cost.cache
    assert read == 4 * 32 * (128 + 16 + 8)  # a ring of the window and a prefill chunk


def test_sparse_layers_read_the_experts_that_are_expected():
    one = 4 * 3 * 32 * 16  # gate, up and down, in float32
    for width in (1, 6):
        read = predict.target_pass(toy_setup(target=SPARSE), width).cost.experts
        assert read == pytest.approx(2 * one * expected_reads(8, 2, width))


def test_devices_share_weights_and_sum_up_hidden_states():
    cost = predict.target_pass(toy_setup(topology=toy_machine(2)), 3).cost
    assert cost.weights == 4 * (15_488 // 2 + 64 + 3 * 32 + 1024)  # norms are on both
    assert cost.cache == 4 * 2 * 128 * 16
    # Two all-reduces a layer and one of embeddings; half of the logits comes from the other.
    assert cost.exchanges == 6
    assert cost.sent == 2 * 5 * (4 * 3 * 32) / 2 + 4 * 3 * 64 / 2


def test_rows_are_cut_between_devices():
    whole = predict.target_pass(toy_setup(batch=4), 3).cost
    cut = predict.target_pass(toy_setup(batch=4, topology=toy_machine(2), mesh=(2, 1)), 3).cost
    assert (cut.cache, cut.laws, cut.sent) == (whole.cache / 2, whole.laws / 2, 0)


def test_a_whole_draft_model_exchanges_nothing():
    setup = toy_setup(drafter=toy_config(), topology=toy_machine(2), placement="replicated")
    assert predict.draft_pass(setup).cost.sent == 0
    assert predict.draft_pass(setup.but(placement="sharded")).cost.sent > 0


def test_speedups_are_those_of_the_formula():
    setup = toy_setup(drafter=toy_config(layers=(GLOBAL,)))
    plain, first, later = (
        one.seconds
        for one in (
            predict.target_pass(setup, 1),
            predict.draft_pass(setup, 2),
            predict.draft_pass(setup),
        )
    )
    for gain in predict.gains(setup):
        for k, found in zip(predict.LENGTHS, gain.speedups, strict=True):
            length = sum(gain.rate**i for i in range(k + 1))
            drafting = (first + (k - 1) * later) / k / plain
            check = predict.target_pass(setup, k + 1).seconds / plain
            assert found == pytest.approx(metrics.speedup(length, k, drafting, check))
        assert max(gain.speedups) <= predict.ceiling(gain.rate)


def test_the_ceiling_is_that_of_long_free_drafts():
    for rate in predict.RATES:
        length = metrics.expected_acceptance_length([rate] * 1000)
        assert metrics.speedup(length, 1000, 0.0, 1.0) == pytest.approx(predict.ceiling(rate))


def test_speculation_stops_paying_at_the_rows_that_are_said():
    # Little of the cache is in use, so that with many rows products take the time.
    setup = Setup(find_config("llama-3.1-8b"), "v5e:2x2", context=128)
    batches = predict.Batches(setup)
    first, stops = batches.paying(0.5)
    assert first == 1
    assert batches.best(stops - 1, 0.5) > 1 >= batches.best(stops, 0.5)


def test_where_no_draft_length_pays_none_is_best():
    setup = toy_setup(drafter=toy_config())  # as dear as the target
    gains = predict.gains(setup, [0.0, 0.99])
    assert (gains[0].best_length, gains[0].best, gains[0].pays_from) == (0, 1.0, None)


def test_prefill_and_first_round_make_the_first_token():
    setup = toy_setup(prompt=17, draft_length=3)
    # Sixteen positions in two chunks of 8, no logits.
    chunks = [predict.target_pass(setup, 8, filled, laws=0) for filled in (8, 16)]
    assert predict.prefill(setup) == chunks[0] + chunks[1]
    check = predict.target_pass(setup, 4, 17)
    assert predict.first_token(setup) == pytest.approx(
        predict.prefill(setup).seconds + check.seconds
    )


TOTALS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_have_the_published_shapes(name):
    config = find_config(name)
    held = {p: one.shape for p, one in parameters(config).items()}
    total = sum(_size(shape) for shape in held.values())
    assert config.max_length is not None
    assert total == TOTALS.get(name, total)


def _size(shape):
    total = 1
    for n in shape:
        total *= n
    return total


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_says_where_its_figures_are_from(name):
    chip = find_machine(f"{name}:2x2").chip
    assert chip.source.startswith("https://")
    assert 100 < chip.ridge("bfloat16") < 700
    with pytest.raises(ValueError, match="no published rate for float64"):
        chip.peak("float64")
