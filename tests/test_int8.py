"""Weight-only int8: how far a weight may move, and that every product is the defined one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import int8
from specjax.int8 import matmul, quantize

SIZES = {"lanes": (96, 512), "uneven blocks": (101, 512), "no lanes": (101, 40), "one": (1, 512)}
"""[out, in]: each way through the CPU's product, at 1, 5 and 16 rows."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(int8, "BLOCK", 2**15)


def random_weight(*shape):
    rng = np.random.default_rng(0)
    spread = 10.0 ** rng.uniform(-3, 3, (*shape[:-1], 1))
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def product(x, weight, scale):
    """The definition in float64, and the sum of its terms' magnitudes, to hold errors against."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64).T
    return x @ weight * np.asarray(scale), np.abs(x) @ np.abs(weight) * np.asarray(scale)


def assert_within(found, expected, bound):
    assert (np.abs(np.asarray(found, np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("shape", [(33, 48), (3, 8, 48)], ids=["one", "experts"])
def test_no_weight_moves_by_more_than_half_a_step_of_its_channel(shape):
    weight = random_weight(*shape)
    quantized, scale = quantize(weight)
    assert (quantized.dtype, quantized.shape) == (np.int8, shape)
    assert (scale.dtype, scale.shape) == (np.float32, shape[:-1])
    moved = np.abs(weight - quantized.astype(np.float64) * scale[..., None])
    assert (moved <= scale[..., None] * 0.5 * (1 + 1e-4)).all()
    # All 127 steps are used: a scale that is too wide would keep the bound of its own.
    assert (np.abs(quantized.astype(int)).max(-1) == 127).all()


def test_a_channel_of_zeros_stays_zero():
    weight = random_weight(4, 16)
    weight[1] = 0
    quantized, scale = quantize(weight)
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    assert not quantized[1].any()


@pytest.mark.parametrize("tiny", [1e-45, 1e-40, 1e-37])
def test_a_channel_of_denormals_keeps_the_bound(tiny):
    weight = np.array([[tiny, -tiny / 2]], np.float32)
    quantized, scale = quantize(weight)
    assert (np.abs(weight - quantized * scale[:, None]) <= scale[:, None] / 2).all()


def test_quantising_bfloat16_is_quantising_its_values():
    weight = np.asarray(jnp.asarray(random_weight(5, 16), jnp.bfloat16))
    for found, expected in zip(quantize(weight), quantize(weight.astype(np.float32)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="weight: holds infinities or NaN"):
        quantize(np.array([[1, bad]], np.float32))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_every_way_gives_the_defined_product(size, rows):
    weight, scale = quantize(random_weight(*size))
    x = np.random.default_rng(1).standard_normal((rows, size[1])).astype(np.float32)
    found = jax.jit(matmul)(x, jnp.asarray(weight), jnp.asarray(scale))
    expected, magnitude = product(x, weight, scale)
    assert (found.dtype, found.shape) == (jnp.float32, (rows, size[0]))
    assert_within(found, expected, 1e-6 * magnitude)  # so each channel is held to its own scale


def test_leading_axes_stay_and_the_result_has_the_type_asked_for():
    weight, scale = map(jnp.asarray, quantize(random_weight(96, 512)))
    x = jax.random.normal(jax.random.key(0), (2, 1, 512)).astype(jnp.bfloat16)
    expected, magnitude = product(x, weight, scale)
    loose, exact = matmul(x, weight, scale), matmul(x, weight, scale, dtype=jnp.float32)
    assert (loose.dtype, loose.shape) == (jnp.bfloat16, (2, 1, 96))
    # Sums are float32's whatever x is; bfloat16 has 8 bits, rounded once.
    assert_within(exact, expected, 1e-6 * magnitude)
    assert_within(loose, expected, 1e-6 * magnitude + 2**-8 * np.abs(expected))


def test_the_accelerators_product_is_the_same():
    weight, scale = map(jnp.asarray, quantize(random_weight(96, 512)))
    x = jax.random.normal(jax.random.key(0), (3, 512), jnp.float32)
    plain = int8._plain(x, weight) * scale
    expected, magnitude = product(x, weight, scale)
    assert_within(plain, expected, 1e-6 * magnitude)


@jax.jit
def steps(x, first, second, scale):
    """As in decoding: the layers again and again, with the same weights."""

    def step(_, x):
        return x + matmul(jax.nn.silu(matmul(x, first, scale)), second, scale)

    return jax.lax.fori_loop(0, x.shape[0] + 3, step, x)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_no_float_copy_of_a_whole_weight_is_made(rows):
    x = jax.ShapeDtypeStruct((rows, 512), jnp.float32)
    weight = jax.ShapeDtypeStruct((512, 512), jnp.int8)
    scale = jax.ShapeDtypeStruct((512,), jnp.float32)
    program = steps.lower(x, weight, weight, scale).compile()
    # Converted blocks are half a weight at most, or lanes for each row; both layers share them.
    assert program.memory_analysis().temp_size_in_bytes < 0.8 * 4 * 512 * 512
