"""The first layers draft: what they cache and hand on is what a whole pass would have left."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from specjax import loop, rng
from specjax.adapters.adapted import Adapted
from specjax.drafters import Plain
from specjax.drafters.early_exit import EarlyExit
from specjax.loop import Program
from specjax.models import LayerKind
from specjax.models.rope import Rope
from specjax.testing import TableLM, tiny_lm
from specjax.testing.statistics import sampling_values
from specjax.testing.target_checks import pass_over
from specjax.types import RUNNING
from specjax.verify import Block, Coupled

K, BUDGET, L = 3, 24, 4
WINDOW = LayerKind(Rope(8), 6)
TARGET = tiny_lm(jax.random.key(0), layers=[WINDOW, LayerKind(Rope(8))] * 2)
PROMPTS = [[3, 4, 5, 3, 4, 5], [7] * 20, [9, 8], [1]]


def last_layers_scaled(target, first, factor):
    """The same model, its layers from ``first`` on adding ``factor`` times what they did."""

    def scaled(layer):
        down, output = (
            jax.tree.map(lambda x: factor * x, part) for part in (layer.down, layer.output)
        )
        return layer.replace(down=down, output=output)

    layers = target.weights.layers
    layers = (*layers[:first], *(scaled(layer) for layer in layers[first:]))
    return target.replace(weights=target.weights.replace(layers=layers))


@partial(jax.jit, static_argnames="budget")
def begin(program, tokens, length, temperature, *, budget=BUDGET):
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=sampling_values(4).replace(temperature=temperature),
        key=rng.row_keys(jnp.arange(4, dtype=jnp.uint32)),
        limit=length + budget,
        chunk=8,
    )
    return loop.prefill(program, state, chunk=8)


run_rounds = jax.jit(loop.advance)


def started(program, temperature=0.0):
    tokens = np.zeros((4, 20 + BUDGET), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    length = jnp.asarray([len(p) for p in PROMPTS], jnp.int32)
    return begin(program, jnp.asarray(tokens), length, jnp.full(4, temperature, jnp.float32))


def finished(program, temperature=0.0):
    return run_rounds(program, started(program, temperature), BUDGET)


def with_cap(state, cap):
    return state.replace(cap=jnp.resize(jnp.asarray(cap, jnp.int32), 4))


def leaving(target):
    """Its passes feed no more nodes than the longest draft needs."""
    return Program(target, EarlyExit(2, K), Block(), widths=(0, 1))


@pytest.fixture(scope="module")
def plain():
    return finished(Program(TARGET, Plain(), Coupled()))


def test_greedy_tokens_are_those_of_plain_decoding(plain):
    """Layers with windows too, past the end of their rings; no state is kept."""
    state = finished(leaving(TARGET))
    np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
    assert (state.stats.nodes > 0).all()
    assert not jax.tree.leaves(state.drafter)


def test_layers_that_change_little_can_be_left_out():
    """Beside the target as it is, whose last layers change much."""
    near = last_layers_scaled(TARGET, 2, 1e-3)
    rates = []
    for target in (TARGET, near):
        outcomes = finished(leaving(target), 1.0).stats.outcomes.sum(0)
        kept = (outcomes.sum(0) * jnp.arange(K + 1)).sum()
        rates.append(kept / (outcomes.sum(1) * jnp.arange(K + 1)).sum())
    assert rates[1] > 0.95 > rates[0]


def test_the_cache_equals_a_fresh_prefill_whatever_the_caps():
    """Rows that draft nothing stand beside others that do, and rejected drafts leave no trace."""
    program = leaving(last_layers_scaled(TARGET, 2, 0.3))
    state, generator = started(program), np.random.default_rng(0)
    fresh_cache = program.target.init_cache(4, 64)
    for number in range(6):
        cap = generator.integers(0, K + 1, 4) if number else np.array([0, K, K, 0])
        cap = np.minimum(cap, number) if number in (1, 2) else cap * (number != 3)
        state = run_rounds(program, with_cap(state, cap), 1)
        context, count = state.context, state.context.length - 1
        assert (state.finish == RUNNING).all()
        _, fresh = pass_over(program.target, context.tokens, 0 * count, fresh_cache, count)
        ours, _ = pass_over(program.target, context.newest(), count, state.cache)
        theirs, _ = pass_over(program.target, context.newest(), count, fresh)
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    outcomes = state.stats.outcomes.sum(0)
    assert outcomes[0, 0] > 0  # rounds without a draft
    assert (outcomes.sum(0) > 0)[:2].all()  # rejected and accepted drafts


def test_rows_that_do_not_draft_change_no_token(plain):
    program = leaving(TARGET)
    state = run_rounds(program, with_cap(started(program), [0, K, 1, 0]), BUDGET)
    np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
    assert state.stats.nodes[jnp.asarray([0, 3])].tolist() == [0, 0]
    assert (state.stats.nodes[jnp.asarray([1, 2])] > 0).all()


PASSES = []


@struct.dataclass
class Counted(TableLM):
    """A target that notes which layers each of its passes really ran."""

    def extend(self, inputs, *args, layers=None, **kwargs):
        layers = tuple(range(self.num_layers) if layers is None else layers)
        jax.debug.callback(lambda _: PASSES.append(layers), inputs)
        return super().extend(inputs, *args, layers=layers, **kwargs)


@pytest.mark.parametrize(
    ("cap", "drafting"), [([0] * 4, 1), ([0, 1, 0, 0], 2), ([K, 0, 1, K], K + 1)]
)
def test_no_pass_runs_that_no_row_needs(cap, drafting):
    """Each node is fed once: the newest token always, every draft node by the first layers."""
    target = Counted(TableLM.random(jax.random.key(0), 10).table)
    program = Program(target, EarlyExit(1, K), Block())
    state = with_cap(started(program), cap)
    jax.effects_barrier()
    PASSES.clear()
    run_rounds(program, state, 1)
    jax.effects_barrier()
    assert sorted(PASSES) == [(0,)] * drafting + [(1, 2)]


def test_a_table_run_in_parts_gives_the_whole_and_each_part_another_law():
    table = TableLM.random(jax.random.key(0), 10)
    tokens, start = jnp.asarray([[1, 2, 3]], jnp.int32), jnp.zeros(1, jnp.int32)
    cache, count = table.init_cache(1, 4), start + 3
    whole, _, seen = table.extend(tokens, start, cache, count=count, capture=(0, 2))
    first, cache, _ = table.extend(tokens, start, cache, count=count, layers=(0,))
    rest, _, _ = table.extend(first, start, cache, count=count, layers=(1, 2))
    np.testing.assert_array_equal(rest, whole)
    np.testing.assert_array_equal(seen, [first, whole])
    laws = [table.unembed(x) for x in (table.embed(tokens), first, whole)]
    np.testing.assert_array_equal(laws[2], table.table[[[0, 1, 2]], tokens])
    assert (laws[0].argmax(-1) != laws[2].argmax(-1)).any()
    assert (jnp.abs(laws[1] - laws[2]).max(-1) > 0.1)[:, 1:].all()  # nothing is before the first


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyExit(0), "num_layers: must be at least 1, got 0"),
        (lambda: EarlyExit(1, 0), "draft_length: must be at least 1"),
        (lambda: EarlyExit(L).validate(TARGET), "num_layers: .* less than the target's 4 layers"),
        (
            lambda: EarlyExit(1).validate(Adapted(weights=(), call=print, vocab_size=6)),
            "drafter: EarlyExit .* this target shows none",
        ),
    ],
)
def test_a_target_without_layers_to_leave_after_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_target_with_a_layer_more_is_welcome():
    EarlyExit(L - 1).validate(TARGET)
