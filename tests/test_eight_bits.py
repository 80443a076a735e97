"""Models in eight bits: made while loading or after, as a target and as a draft model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_folder import write_tiny_folder

import specjax
from specjax.drafters import DraftModel, NGram
from specjax.models import Experts, LayerKind
from specjax.models.rope import Rope
from specjax.testing import TableLM, tiny_lm

KINDS = [LayerKind(Rope(8), sparse=True), LayerKind(Rope(8))]
TARGET = tiny_lm(jax.random.key(0), layers=KINDS, experts=Experts(4, 2, 16), tied=True)
EIGHT = specjax.quantize(TARGET)
PROMPTS = [[3, 4, 5, 3, 4], [7]]


def test_kernels_are_a_quarter_as_large_and_a_router_stays_as_it_is():
    size = lambda linear: sum(x.nbytes for x in jax.tree.leaves(linear))  # noqa: E731
    for layer, eight in zip(TARGET.weights.layers, EIGHT.weights.layers, strict=True):
        assert eight.qkv.weight.dtype == jnp.int8
        assert size(eight.qkv) < 0.4 * size(layer.qkv)  # the scales of so small a layer count
    experts, eight = (x.weights.layers[0].experts for x in (TARGET, EIGHT))
    assert eight.router.kernel is experts.router.kernel
    assert eight.down.weight.shape == (4, 32, 16)


def test_what_is_made_while_loading_is_what_is_made_after(tmp_path):
    folder = write_tiny_folder(tmp_path / "model")
    sooner, later = specjax.load(folder, quantize="int8"), specjax.quantize(specjax.load(folder))
    jax.tree.map(np.testing.assert_array_equal, sooner.weights, later.weights)
    with pytest.raises(ValueError, match="quantize: must be 'int8' or None, got 'int4'"):
        specjax.load(folder, quantize="int4")
    with pytest.raises(ValueError, match="target: must be a model from specjax.load"):
        specjax.quantize(TableLM.random(jax.random.key(0), 4))


@jax.jit
def logits(target, tokens):
    start = jnp.zeros(1, jnp.int32)
    cache = target.init_cache(1, 16)
    hidden, _, _ = target.extend(tokens, start, cache, count=start + tokens.shape[1])
    return target.unembed(hidden)


def test_logits_are_near_those_of_the_model():
    tokens = jnp.arange(16, dtype=jnp.int32)[None]
    exact, near = logits(TARGET, tokens), logits(EIGHT, tokens)
    difference = jnp.abs(exact - near).max()
    assert 0 < difference < 0.1 * exact.std()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_as_a_draft_model_it_changes_no_token(temperature):
    settings = {"max_new_tokens": 24, "temperature": temperature, "seed": 0}
    plain = specjax.Decoder(TARGET).generate(PROMPTS, **settings)
    decoder = specjax.Decoder(TARGET, DraftModel(EIGHT, 3), verifier="coupled")
    result = decoder.generate(PROMPTS, **settings)
    assert result.tokens == plain.tokens
    assert result.metrics.draft_acceptance_rate > 0.8


@pytest.mark.slow
def test_as_a_target_it_decodes_alike_plain_and_speculative():
    plain, speculative = (
        specjax.Decoder(EIGHT, drafter).generate(PROMPTS, max_new_tokens=24).tokens
        for drafter in (None, NGram(3))
    )
    assert plain == speculative
