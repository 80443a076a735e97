"""Every family has the logits and tokens of transformers, and keeps the promises of a target."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafters import NGram
from specjax.models import Experts, LayerKind, assemble, describe
from specjax.models.rope import Rope
from specjax.testing import check_target, tiny_lm

torch = pytest.importorskip("torch")
from published_models import FAMILIES, WINDOW, tiny_folder  # noqa: E402
from recorded_tensors import assert_each_is_named_when_wrong, tensors_of  # noqa: E402

TOLERANCE = 1e-4
LENGTH, NUM = 64, 32
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """The model of transformers, and ours, loaded from what it saved."""
    folder = tmp_path_factory.mktemp("model")
    model = tiny_folder(folder, request.param)
    yield model, specjax.load(folder, dtype=jnp.float32)
    jax.clear_caches()


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


@jax.jit
def extend(target, tokens, start, cache):
    hidden, cache, _ = target.extend(
        tokens, start, cache, count=jnp.full_like(start, tokens.shape[1])
    )
    return target.unembed(hidden), cache


def pass_over(target, tokens, start, cache):
    with jax.default_matmul_precision("highest"):
        logits, cache = extend(target, jnp.asarray(tokens), jnp.array([start], jnp.int32), cache)
    return np.asarray(logits), cache


def test_logits_are_those_of_transformers_past_the_window(pair):
    model, target = pair
    assert LENGTH > 2 * WINDOW
    tokens = np.random.default_rng(1).integers(0, target.vocab_size, (1, LENGTH), np.int32)
    expected = theirs(model, tokens)
    whole, _ = pass_over(target, tokens, 0, target.init_cache(1, LENGTH))
    np.testing.assert_allclose(whole, expected, atol=TOLERANCE, rtol=0)
    cache, parts = target.init_cache(1, LENGTH, scratch=1), []
    for t in range(LENGTH):
        logits, cache = pass_over(target, tokens[:, t : t + 1], t, cache)
        parts.append(logits)
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=TOLERANCE, rtol=0)


SAMPLE = ("gemma2", "mixtral")
"""Between them all that a layer may have; what costs most is slow for the others."""

sampled = pytest.mark.parametrize(
    "pair",
    [pytest.param(x, marks=() if x in SAMPLE else pytest.mark.slow) for x in FAMILIES],
    indirect=True,
)


@sampled
def test_greedy_tokens_are_those_of_transformers_plain_and_speculative(pair):
    model, target = pair
    plain, speculative = (
        specjax.Decoder(target, drafter, prefill_chunk=8)
        .generate(PROMPT, max_new_tokens=NUM)
        .tokens[0]
        for drafter in (None, NGram(3))
    )
    expected = theirs(model, [PROMPT + plain])[0, len(PROMPT) - 1 : -1].argmax(-1)
    assert len(plain) == NUM
    assert plain == expected.tolist()
    assert speculative == plain


@sampled
def test_the_promises_of_a_target_are_kept(pair):
    check_target(pair[1])


def test_every_tensor_is_read_once_and_named_where_it_is_wrong(pair):
    table = describe(pair[1].config.published)
    tensors = tensors_of(table)
    assemble(table, tensors)
    assert tensors.readings == {name: x.size for name, x in tensors.items()}
    assert_each_is_named_when_wrong(table)


def test_what_a_pass_reads_of_the_experts_is_counted():
    kind = LayerKind(Rope(8), sparse=True)
    experts = Experts(num=8, num_chosen=2, size=16)
    target = tiny_lm(jax.random.key(0), layers=[kind, LayerKind(Rope(8)), kind], experts=experts)
    result = specjax.Decoder(target, NGram(3)).generate([PROMPT, PROMPT[:3]], max_new_tokens=20)
    metrics = result.metrics
    assert metrics.experts_per_position == 2 * 2
    assert 4 < metrics.experts_per_pass <= 4 * 4
    assert metrics.expert_read_ratio == metrics.experts_per_pass / 4
    assert metrics.to_dict()["expert_read_ratio"] == metrics.expert_read_ratio
    assert sum(x.num_experts_read for x in result.row_metrics) == metrics.num_experts_read


def test_gpt2_is_read_as_its_authors_published_it(tmp_path):
    model = tiny_folder(tmp_path / "whole", "gpt2")
    model.transformer.save_pretrained(tmp_path / "bare")
    bare = tmp_path / "bare" / "config.json"
    config = json.loads(bare.read_text()) | {"architectures": ["GPT2LMHeadModel"]}
    bare.write_text(json.dumps(config))
    one, other = (specjax.load(tmp_path / name).weights for name in ("whole", "bare"))
    jax.tree.map(np.testing.assert_array_equal, one, other)
