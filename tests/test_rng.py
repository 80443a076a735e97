"""One key for each use: streams, counters and rows never meet, whatever the batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import KeyReuseError
from scipy import stats

from specjax import rng
from specjax.drafters import DraftModel, Plain
from specjax.loop import Program
from specjax.testing import TableLM
from specjax.testing.statistics import decode
from specjax.verify import Block, Coupled

KEYS = rng.row_keys(jnp.arange(5, dtype=jnp.uint32))


def bits(keys):
    """Key data as a list of pairs."""
    return [tuple(pair) for pair in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()]


def test_an_int_seed_gives_row_i_the_seed_plus_i():
    assert rng.draw_seeds(7, 3) == [7, 8, 9]


def test_a_list_of_seeds_is_taken_as_it_is():
    assert rng.draw_seeds([4, 4, 2**32 - 1], 3) == [4, 4, 2**32 - 1]


def test_no_seed_draws_fresh_ones_in_range():
    first, second = rng.draw_seeds(None, 4), rng.draw_seeds(None, 4)
    assert first != second
    assert all(0 <= s < 2**32 for s in first + second)


@pytest.mark.parametrize(
    ("seed", "batch"), [(-1, 1), (2**32 - 1, 2), ([1, 2], 3), ([2**32], 1), ([], 1)]
)
def test_a_seed_that_does_not_fit_is_refused_by_name(seed, batch):
    with pytest.raises(ValueError, match="seed"):
        rng.draw_seeds(seed, batch)


def test_a_numpy_int_is_a_seed():
    assert rng.draw_seeds(np.int64(3), 2) == [3, 4]


@pytest.mark.parametrize("seed", [1.5, [1.7], "ab"])
def test_a_seed_that_is_no_int_is_refused_by_name(seed):
    with pytest.raises(ValueError, match="seed"):
        rng.draw_seeds(seed, 1)


def test_keys_are_threefry_whatever_the_default():
    with jax.default_prng_impl("rbg"):
        keys = rng.row_keys(jnp.arange(2, dtype=jnp.uint32))
        assert str(jax.random.key_impl(keys)) == "threefry2x32"
        assert str(jax.random.key_impl(rng.fold(keys, 1))) == "threefry2x32"
    assert bits(keys) == bits(KEYS[:2])


def test_no_two_uses_share_a_key():
    rows, streams, counters = 5, (rng.POSITION, rng.DRAFT, rng.ACCEPT, rng.LAST), 40
    used = [
        bits(
            rng.fold(rng.stream(KEYS, name, jnp.full(rows, c)), jnp.arange(6)[None].repeat(rows, 0))
        )
        + bits(rng.stream(KEYS, name, jnp.full(rows, c)))
        for name, c in itertools.product(streams, range(counters))
    ]
    flat = list(itertools.chain(*used))
    assert len(set(flat)) == len(flat) == rows * 4 * counters * 7


def test_folding_broadcasts_from_the_left():
    data = jnp.arange(15).reshape(5, 3)
    folded = rng.fold(KEYS, data)
    for row, column in ((0, 0), (4, 2), (2, 1)):
        alone = jax.random.fold_in(KEYS[row], int(data[row, column]))
        assert bits(folded[row, column]) == bits(alone)
    assert bits(rng.fold(KEYS, 9)) == [b for k in KEYS for b in bits(jax.random.fold_in(k, 9))]


def test_a_row_draws_the_same_alone_and_in_a_batch():
    counter = jnp.asarray([3, 9, 1, 9, 4])
    together = rng.stream(KEYS, rng.ACCEPT, counter)
    alone = rng.stream(KEYS[3:4], rng.ACCEPT, counter[3:4])
    np.testing.assert_array_equal(rng.uniforms(together, 4)[3:4], rng.uniforms(alone, 4))
    np.testing.assert_array_equal(rng.gumbel(together, 7)[3:4], rng.gumbel(alone, 7))


def test_more_coins_leave_the_first_ones_as_they_were():
    np.testing.assert_array_equal(rng.uniforms(KEYS, 8)[:, :3], rng.uniforms(KEYS, 3))


def test_noise_belongs_to_row_and_position_alone():
    first = jnp.asarray([4, 9, 0, 2, 2])
    noise = rng.position_noise(KEYS, first, 6, 11)
    later = rng.position_noise(KEYS, first + 2, 3, 11)
    np.testing.assert_array_equal(noise[:, 2:5], later)
    alone = rng.position_noise(KEYS[1:2], first[1:2], 1, 11)
    np.testing.assert_array_equal(noise[1:2, :1], alone)
    assert len(np.unique(np.asarray(noise[3:, 0]), axis=0)) == 2  # same place, other rows


def test_coins_are_uniform_and_below_one():
    coins = np.asarray(rng.uniforms(rng.row_keys(jnp.arange(5000, dtype=jnp.uint32)), 4))
    assert coins.min() >= 0
    assert coins.max() < 1
    assert stats.kstest(coins.ravel(), "uniform").pvalue > 1e-6
    # Neighbouring seeds, and the coins of one row, are uncorrelated (five sigma).
    bound = 5 / np.sqrt(5000)
    assert np.abs(np.corrcoef(coins.T) - np.eye(4)).max() < bound
    assert abs(np.corrcoef(coins[1:, 0], coins[:-1, 0])[0, 1]) < bound


def test_noise_is_gumbel():
    noise = np.asarray(rng.position_noise(KEYS, jnp.arange(5), 20, 200))
    assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-6


def test_the_key_reuse_checker_sees_into_a_while_loop():
    """Without this the next test would prove nothing."""

    @jax.jit
    def reuse(key):
        step = lambda carry: (carry[0] + 1, carry[1] + jax.random.uniform(key))  # noqa: E731
        return jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, 0.0))

    with jax.debug_key_reuse(True), pytest.raises(KeyReuseError):
        reuse(jax.random.key(0))


TARGET, DRAFT = (TableLM.random(jax.random.key(i), 4) for i in range(2))


@pytest.mark.parametrize(
    "program",
    [Program(TARGET, DraftModel(DRAFT, 2), Block()), Program(TARGET, Plain(), Coupled())],
    ids=["ratio", "coupled"],
)
def test_a_whole_call_reuses_no_key(program):
    """JAX's checker over prefill, drafting and the loop."""
    with jax.debug_key_reuse(True):
        state = decode(program, [[1, 2, 3]] * 2, 5)
    assert state.context.length.tolist() == [8, 8]


def test_no_two_tokens_share_the_maximum_of_a_large_vocabulary():
    """Noise of 23 bits an entry would tie in one vector of 400, and the lower id would win."""
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 1000)
    noise = jax.jit(lambda k: jax.lax.map(lambda one: rng.gumbel(one[None], 49_152)[0], k))(keys)
    assert ((noise == noise.max(1, keepdims=True)).sum(1) == 1).all()
