"""The target drafts for itself with layers left out, in a cache of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.adapters.adapted import Adapted
from specjax.drafters import DraftModel, Plain
from specjax.drafters.layer_skip import LayerSkip, SomeLayers
from specjax.loop import Program
from specjax.models import LayerKind
from specjax.models.rope import Rope
from specjax.testing import TableLM, tiny_lm
from specjax.testing.statistics import decode, sampling_values
from specjax.testing.target_checks import pass_over
from specjax.verify import Block, Coupled

K, NUM = 3, 40
PROMPTS = [[3, 4, 5, 3, 4, 5], [7] * 20, [9, 8], [1]]
TARGET = tiny_lm(jax.random.key(0), layers=[LayerKind(Rope(8), 6), LayerKind(Rope(8))] * 2)
KEPT = (0, 1, 3)


def without_layer(target, index):
    """The same model, one of its layers adding nothing."""
    layer = target.weights.layers[index]
    silent = layer.replace(
        down=jax.tree.map(jnp.zeros_like, layer.down),
        output=jax.tree.map(jnp.zeros_like, layer.output),
    )
    layers = (*target.weights.layers[:index], silent, *target.weights.layers[index + 1 :])
    return target.replace(weights=target.weights.replace(layers=layers))


def run(target, drafter, verifier, temperature=0.0):
    values = sampling_values(4, temperature)
    return decode(Program(target, drafter, verifier), PROMPTS, NUM, values=values)


@pytest.fixture(scope="module")
def skipping():
    return run(TARGET, LayerSkip(KEPT, K, catch_up=4), Block())


def test_greedy_tokens_are_those_of_plain_decoding(skipping):
    plain = run(TARGET, Plain(), Coupled())
    np.testing.assert_array_equal(skipping.context.tokens, plain.context.tokens)
    outcomes = skipping.stats.outcomes.sum(0)
    assert outcomes[K, 0] > 0  # it is not the target that drafts
    assert outcomes[K, 1:].sum() > 0


def test_a_layer_that_does_nothing_can_be_skipped():
    """Sampled, over many rounds: had the draft's cache drifted, acceptance would fall."""
    state = run(without_layer(TARGET, 2), LayerSkip(KEPT, K, catch_up=4), Block(), 1.0)
    judged = state.stats.outcomes.sum(0)
    assert judged.sum() == jnp.diagonal(judged).sum()


def test_the_draft_cache_is_that_of_a_fresh_prefill_with_these_layers(skipping):
    own, model = skipping.drafter, SomeLayers(TARGET, KEPT)
    tokens, start = skipping.context.tokens, 0 * skipping.drafter.synced
    empty = model.init_cache(4, tokens.shape[1] + 2)
    _, fresh = pass_over(model, tokens, start, empty, own.synced)
    newest = skipping.context.window(own.synced, 2)
    ours, _ = pass_over(model, newest, own.synced, own.cache)
    theirs, _ = pass_over(model, newest, own.synced, fresh)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_layer_that_never_runs_has_no_cache():
    cache = LayerSkip(KEPT, K).init(TARGET, 2, 100).cache
    sizes = [[x.shape[1] for x in pair] for pair in cache.layers]
    assert sizes == [[6 + 32] * 2, [100] * 2, [1] * 2, [100] * 2]


@pytest.mark.slow
def test_all_layers_are_the_target_drafting_for_itself():
    table = TableLM.random(jax.random.key(0), 10)
    every = run(table, LayerSkip(range(3), K), Block(), 1.0)
    itself = run(table, DraftModel(table, K), Block(), 1.0)
    np.testing.assert_array_equal(every.context.tokens, itself.context.tokens)
    assert every.drafted.sum() == itself.drafted.sum() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerSkip(()), r"layers: must be the layers to run, .* got \(\)"),
        (lambda: LayerSkip((1, 0)), r"layers: must be .* ascending .* got \(1, 0\)"),
        (lambda: LayerSkip((0, 0)), "layers: must be"),
        (lambda: LayerSkip((-1, 2)), "layers: must be"),
        (lambda: LayerSkip(2), "layers: must be .* got 2"),
        (lambda: LayerSkip((0,), 0), "draft_length: must be at least 1"),
        (lambda: LayerSkip((0,), catch_up=0), "catch_up: must be at least 1"),
        (lambda: LayerSkip((0, 4)).validate(TARGET), r"layers: the target has layers 0\.\.3"),
        (
            lambda: LayerSkip((0,)).validate(Adapted(weights=(), call=print, vocab_size=6)),
            "drafter: LayerSkip .* this target shows none",
        ),
    ],
)
def test_layers_that_the_target_does_not_have_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_any_of_the_targets_layers_may_be_chosen():
    for layers in [(0,), (3,), (1, 2), range(4), [0, np.int64(2)]]:
        drafter = LayerSkip(layers)
        drafter.validate(TARGET)
        assert hash(drafter.layers) == hash(tuple(layers))
