"""From logits to the law: the filters against a sort and against transformers, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.testing.statistics import sampling_values
from specjax.types import Sampling

INF = np.inf


def values(temperature, top_k, top_p, min_p):
    """One row for each entry."""
    arrays = np.broadcast_arrays(temperature, np.asarray(top_k), top_p, min_p)
    kinds = (jnp.float32, jnp.int32, jnp.float32, jnp.float32)
    filters = (jnp.asarray(a, k) for a, k in zip(arrays, kinds, strict=True))
    return Sampling(*filters, stop_ids=jnp.full((len(arrays[0]), 1), -1, jnp.int32))


@jax.jit
def filtered(logits, row_values):
    """The shipped filters on one node a row."""
    depth = jnp.zeros((logits.shape[0], 1), jnp.int32)
    path = jnp.zeros((logits.shape[0], 1, 1), jnp.int32)
    states = ((),) * len(sampling.FILTERS)
    return sampling.process(sampling.FILTERS, states, row_values, logits[:, None], path, depth)[
        :, 0
    ]


def kept_by_sort(logits, weight, least):
    """The largest logits whose weights together reach ``least``, ties included."""
    order = np.argsort(-logits, kind="stable")
    reached = np.cumsum(weight[order]) >= least
    last = order[np.argmax(reached)] if reached.any() else order[-1]
    return logits >= logits[last]


def awkward_logits(rows, size, seed=0):
    """Normal, tied, huge, denormal, negative and forbidden logits in every row."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, size)) * generator.choice([1e-3, 1, 30], (rows, 1))
    tied = np.round(logits)
    special = generator.choice([-INF, 1e-42, -1e-42, 3e38, -3e38, 0.0, 7.0], (rows, size))
    kind = generator.choice(3, (rows, size), p=[0.5, 0.3, 0.2])
    return (np.select([kind == 0, kind == 1], [logits, tied], special) + 0.0).astype(np.float32)


def test_bisection_keeps_what_a_sort_would_keep():
    logits = awkward_logits(4000, 17)
    generator = np.random.default_rng(1)
    # Multiples of 1/1024 add up exactly, so that no rounding excuses a difference.
    weight = (generator.integers(1, 100, logits.shape) / 1024).astype(np.float32)
    least = (generator.integers(1, 1200, len(logits)) / 1024).astype(np.float32)
    keep = jax.jit(jax.vmap(sampling.keep_heaviest))
    out = np.asarray(keep(logits, weight, least, np.ones(len(logits), bool)))
    want = np.stack([kept_by_sort(*row) for row in zip(logits, weight, least, strict=True)])
    np.testing.assert_array_equal(out, np.where(want, logits, -INF))


def test_top_k_is_the_kth_largest_with_its_ties():
    logits = awkward_logits(500, 17, seed=2)
    logits[np.abs(logits) < 1e-37] = 0  # arithmetic may flush these to zero, and tie them so
    k = np.arange(500) % 20 + 1  # beyond the vocabulary too
    out = np.asarray(filtered(logits, values(1.0, k, 1.0, 0.0)))
    ones = np.ones(17)
    want = np.stack([kept_by_sort(row, ones, n) for row, n in zip(logits, k, strict=True)])
    np.testing.assert_array_equal(out, np.where(want, logits, -INF))


def test_ties_at_the_threshold_are_all_kept():
    logits = jnp.asarray([[2.0, 1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, -9.0]])
    top_k = filtered(logits, values([1.0, 1.0], [2, 1], 1.0, 0.0))
    assert np.isfinite(top_k).tolist() == [[True] * 4 + [False]] * 2
    top_p = filtered(logits, values([1.0, 1.0], 0, [0.5, 0.3], 0.0))
    assert np.isfinite(top_p).tolist() == [[True] * 4 + [False]] * 2


def test_both_zeros_tie():
    kept = filtered(jnp.asarray([[0.0, -0.0, -1.0]]), values([1.0], 1, 1.0, 0.0))
    assert np.isfinite(kept).tolist() == [[True, True, False]]


def test_filters_agree_with_transformers_row_by_row():
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    rows = 90
    generator = np.random.default_rng(3)
    logits = (generator.normal(size=(rows, 40)) * 3).astype(np.float32)
    temperature = generator.choice([0.3, 0.7, 1.0, 1.8], rows)
    top_k = generator.choice([0, 1, 5, 39, 40, 60], rows)
    top_p = generator.choice([0.05, 0.5, 0.9, 0.999, 1.0], rows)
    min_p = generator.choice([0.0, 0.02, 0.3, 1.0], rows)
    out = np.asarray(filtered(logits, values(temperature, top_k, top_p, min_p)))
    for row in range(rows):
        x = theirs.TemperatureLogitsWarper(float(temperature[row]))(
            None, torch.tensor(logits[row : row + 1])
        )
        if top_k[row]:
            x = theirs.TopKLogitsWarper(int(top_k[row]))(None, x)
        if top_p[row] < 1:
            x = theirs.TopPLogitsWarper(float(top_p[row]))(None, x)
        if min_p[row]:
            x = theirs.MinPLogitsWarper(float(min_p[row]))(None, x)
        np.testing.assert_allclose(out[row], x[0].numpy(), rtol=1e-6, err_msg=f"row {row}")


def test_filters_that_are_off_change_no_bit():
    logits = awkward_logits(300, 17, seed=4)
    logits[0, :2] = -0.0
    off = filtered(logits, values(np.ones(300), 0, 1.0, 0.0))
    plain = logits.view(np.int32)
    changed = np.asarray(off).view(np.int32) != plain
    # CPU and TPU arithmetic flush denormal numbers to zero; nothing else may change.
    assert (np.abs(logits[changed]) < np.finfo(np.float32).tiny).all()


def test_no_filter_sorts_the_vocabulary():
    text = str(jax.make_jaxpr(filtered)(jnp.zeros((2, 9)), sampling_values(2, 0.7, 3, 0.9, 0.1)))
    assert "sort" not in text
    assert "while" in text


def test_a_row_that_allows_nothing_gives_zeros():
    logits = jnp.full((2, 5), -INF)
    for row_values in (sampling_values(2), sampling_values(2, 0.5, 2, 0.8, 0.1)):
        np.testing.assert_array_equal(sampling.softmax(filtered(logits, row_values)), 0)
    np.testing.assert_array_equal(sampling.law(logits, jnp.asarray([True, False])), 0)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_a_tiny_temperature_is_the_argmax_without_nan(temperature):
    logits = np.abs(awkward_logits(1, 9)) * 0 + np.asarray([[3e4, -3e4, 3e4, 1, 0, -1, 2, 9, 5]])
    out = filtered(logits.astype(np.float32), values([temperature], 0, 0.9, 0.05))
    np.testing.assert_allclose(sampling.softmax(out), [[0.5, 0, 0.5, 0, 0, 0, 0, 0, 0]])


def test_the_smallest_temperature_gives_no_nan():
    out = filtered(jnp.asarray([[40.0, 5.0, -3.0]]), values([1e-37], 0, 1.0, 0.0))
    np.testing.assert_allclose(sampling.softmax(out), [[1, 0, 0]])


def test_a_quotient_that_would_overflow_gives_a_law():
    logits = jnp.asarray([[1e30, 1e29, -1e30], [-1e35, -1e30, -1e31], [3e38, 3e38, -INF]])
    out = filtered(logits, values([1e-20, 1e-30, 1e-30], 0, 0.9, 0.05))
    np.testing.assert_allclose(sampling.softmax(out), [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]])


def test_extreme_logits_give_a_law():
    logits = jnp.asarray([[3e38, -3e38, 3e38], [-3e38, -3e38, -INF], [1e-42, 0.0, -INF]])
    np.testing.assert_allclose(
        sampling.softmax(logits), [[0.5, 0, 0.5], [0.5, 0.5, 0], [0.5, 0.5, 0]]
    )


def test_half_precision_logits_are_normalised_in_float32():
    logits = jnp.asarray(np.random.default_rng(5).normal(size=(2, 300)), jnp.bfloat16)
    probs = sampling.softmax(logits)
    assert probs.dtype == jnp.float32
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)
    assert filtered(logits, sampling_values(2)).dtype == jnp.float32


def test_float64_logits_stay_float64():
    with jax.enable_x64(True):
        logits = jnp.asarray(np.random.default_rng(6).normal(size=(2, 9)))
        out = filtered(logits, sampling_values(2, 0.7, 5, 0.9, 0.05))
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(sampling.softmax(out).sum(-1), 1, rtol=1e-15)


def test_a_greedy_law_is_a_point_mass_on_the_first_of_the_largest():
    logits = jnp.asarray([[1.0, 4.0, 4.0], [1.0, 4.0, 4.0]])
    law = sampling.law(logits, jnp.asarray([True, False]))
    assert law[0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(law[1], np.exp([1, 4, 4]) / np.exp([1, 4, 4]).sum(), rtol=1e-6)


def test_greedy_rows_get_no_noise():
    logits, noise = jnp.zeros((2, 3)), jnp.asarray([[0.0, 9.0, 1.0]] * 2)
    out = sampling.perturb(logits, noise, jnp.asarray([True, False]))
    assert out.argmax(-1).tolist() == [0, 1]


class Penalty:
    """Subtracts how often a token was seen; knows the prompt, then what it is told."""

    def init(self, tokens, length, row):
        inside = (jnp.arange(tokens.shape[0]) < length)[:, None]
        return (jax.nn.one_hot(tokens, 4) * inside.astype(jnp.float32)).sum(0)

    def advance(self, h, token):
        return h.at[token].add(1)

    def apply(self, logits, h, row):
        return logits - h


def test_a_processor_sees_the_prompt_and_exactly_the_path_of_each_node():
    chain = (Penalty(),)
    tokens = jnp.asarray([[1, 1, 3, 0], [2, 0, 0, 0]])
    states = sampling.start_processors(chain, tokens, jnp.asarray([3, 1]), sampling_values(2))
    path = jnp.asarray([[[3, 2], [3, 2], [3, 2]], [[0, 0], [1, 0], [1, 1]]])
    depth = jnp.asarray([[0, 1, 2], [0, 1, 2]])
    out = sampling.process(chain, states, sampling_values(2), jnp.zeros((2, 3, 4)), path, depth)
    assert (-out).tolist() == [
        [[0, 2, 0, 1], [0, 2, 0, 2], [0, 2, 1, 2]],
        [[0, 0, 1, 0], [0, 1, 1, 0], [0, 2, 1, 0]],
    ]


def test_processors_advance_by_what_each_row_emitted():
    chain = (Penalty(),)
    states = (jnp.zeros((3, 4)),)
    emitted = jnp.asarray([[1, 1, 2], [3, 1, 0], [0, 0, 0]])
    (out,) = sampling.advance_processors(chain, states, emitted, jnp.asarray([3, 1, 0]))
    assert out.tolist() == [[0, 2, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
