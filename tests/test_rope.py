"""Rotary embedding and its scalings, against transformers where torch is installed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.rope import SCALINGS, Rope, frequencies, rotate, rotation

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SCALED = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn attention_factor": YARN | {"attention_factor": 1.5},
    "yarn mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.01 * i for i in range(32)],
    "long_factor": [1.0 + 0.5 * i for i in range(32)],
}


def assert_angles_equal(positions, dim, longest, scaling):
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_theta": 10_000.0} | scaling
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        max_position_embeddings=longest,
        rope_parameters=dict(scaling),
    )
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([positions]))
    rope = Rope.from_hf({"max_position_embeddings": longest, "rope_parameters": scaling}, dim)
    found = rotation(rope, jnp.array([positions], jnp.int32))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy()[..., : dim // 2], atol=2e-4)


@pytest.mark.parametrize("scaling", SCALED.values(), ids=SCALED.keys())
def test_angles_equal_those_of_transformers(scaling):
    assert_angles_equal([0, 1, 7, 100, 511, 1000, 2047], 64, 2048, scaling)


@pytest.mark.parametrize("position", [63, 64, 100, 1000])
def test_dynamic_stretches_as_transformers_does_token_by_token(position):
    assert_angles_equal([position], 16, 64, SCALED["dynamic"])


@pytest.mark.parametrize("position", [0, 511, 512, 2000])
def test_longrope_changes_tables_as_transformers_does_token_by_token(position):
    assert_angles_equal([position], 64, 2048, LONGROPE)


def test_longrope_needs_a_divisor_for_every_pair():
    config = {"max_position_embeddings": 2048, "rope_parameters": LONGROPE}
    with pytest.raises(ValueError, match="'longrope' needs 8 numbers in 'short_factor'"):
        Rope.from_hf(config, 16)


def test_every_scaling_differs_from_every_other():
    fields = {"max_position_embeddings": 2048}
    positions = jnp.array([[3, 700, 3000]], jnp.int32)
    cosines = [
        rotation(Rope.from_hf({**fields, "rope_parameters": x}, 64), positions)[0]
        for x in (*SCALED.values(), LONGROPE)
    ]
    for one, other in itertools.combinations(cosines, 2):
        assert jnp.abs(one - other).max() > 1e-3
    assert {x["rope_type"] for x in SCALED.values()} | {"longrope"} == set(SCALINGS)


def test_scores_depend_on_distance_alone():
    rope, keys = Rope(16), jax.random.split(jax.random.key(0))
    query, key = (jax.random.normal(k, (1, 1, 2, 16)) for k in keys)

    def score(at, other):
        turned = [
            rotate(x, *rotation(rope, jnp.array([[p]], jnp.int32)))
            for x, p in ((query, at), (key, other))
        ]
        return (turned[0] * turned[1]).sum(-1)

    np.testing.assert_allclose(score(9, 4), score(105, 100), atol=1e-4)
    assert jnp.abs(score(9, 4) - score(9, 5)).max() > 1e-2


def test_position_zero_and_channels_beyond_the_rotary_ones_stay():
    x = jax.random.normal(jax.random.key(0), (1, 2, 3, 16))
    rope = Rope.from_hf({"partial_rotary_factor": 0.5}, 16)
    turned = rotate(x, *rotation(rope, jnp.array([[0, 5]], jnp.int32)))
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])
    assert jnp.abs(turned[:, 1, :, :8] - x[:, 1, :, :8]).max() > 0.1


def test_older_fields_mean_the_same():
    config = {"max_position_embeddings": 2048, "rope_theta": 500.0}
    older = Rope.from_hf({**config, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8)
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    assert older == Rope.from_hf(
        {"max_position_embeddings": 2048, "rope_parameters": parameters}, 8
    )
    np.testing.assert_allclose(frequencies(older), 500.0 ** -(np.arange(4) / 4) / 2, rtol=1e-6)


def test_an_unknown_scaling_is_named():
    config = {
        "max_position_embeddings": 8,
        "rope_scaling": {"rope_type": "spiral", "factor": 2.0},
    }
    with pytest.raises(ValueError, match="rope_type 'spiral' is not supported.*llama3"):
        Rope.from_hf(config, 8)


def test_a_scaling_without_its_factor_is_refused():
    config = {"max_position_embeddings": 8, "rope_scaling": {"rope_type": "linear"}}
    with pytest.raises(ValueError, match="'linear' needs 'factor'"):
        Rope.from_hf(config, 8)
