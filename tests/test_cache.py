"""Caches: what is written, what is dropped, and how an accepted tree path becomes contiguous."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.cache import KVCache, move_slots, write_slots
from specjax.protocols import Cache
from specjax.testing.table_lm import TokenCache

B, S = 3, 10


def slots(*tail, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, S, *tail)), jnp.float32)


def kv_cache(seed=0):
    """Two layers of distinct values."""
    layer = lambda i: (slots(6, seed=i), slots(6, seed=i + 1))  # noqa: E731
    return KVCache((layer(seed), layer(seed + 2)), rings=(False, False))


def test_writes_count_slots_from_start_and_nothing_else():
    old, new = slots(2), slots(2, seed=1)[:, :4]
    start, count = jnp.array([0, 5, 3]), jnp.array([4, 2, 0])
    want = np.array(old)
    for row in range(B):
        want[row, start[row] : start[row] + count[row]] = new[row, : count[row]]
    np.testing.assert_array_equal(write_slots(old, new, start, count), want)


def test_an_inactive_row_may_have_a_negative_start():
    old = slots()
    out = write_slots(old, 0 * old[:, :4] + 9, jnp.array([-1, -7, -100]), jnp.zeros(B, int))
    np.testing.assert_array_equal(out, old)


def test_what_goes_beyond_the_cache_is_dropped():
    old = slots()
    out = np.asarray(write_slots(old, 0 * old[:, :4] + 9, jnp.array([8, 9, 10]), jnp.full(B, 4)))
    want = np.array(old)
    want[0, 8:], want[1, 9:] = 9, 9
    np.testing.assert_array_equal(out, want)


def test_new_values_take_the_dtype_of_the_cache():
    old = jnp.zeros((B, S), jnp.bfloat16)
    out = write_slots(old, jnp.ones((B, 2), jnp.float32), jnp.zeros(B, int), jnp.full(B, 2))
    assert out.dtype == jnp.bfloat16
    assert out[:, :2].tolist() == [[1, 1]] * B


def test_a_path_moves_to_the_slots_behind_the_newest_token():
    old = slots(2)
    start, path = jnp.array([0, 2, 4]), jnp.array([[2, 5, 3], [1, 2, 3], [4, 4, 5]])
    want = np.array(old)
    for row, j in itertools.product(range(B), range(3)):
        want[row, start[row] + 1 + j] = old[row, start[row] + path[row, j]]
    np.testing.assert_array_equal(move_slots(old, start, path), want)


def test_compacting_moves_every_layer_of_both_caches():
    start, path = jnp.asarray([1, 0, 3]), jnp.asarray([[2, 4], [1, 2], [3, 5]])
    tokens = TokenCache(jnp.arange(B * S).reshape(B, S), jnp.arange(B * S).reshape(B, S) + 100)
    for cache in (kv_cache(), tokens):
        moved = cache.compact(start, path)
        for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(moved), strict=True):
            np.testing.assert_array_equal(new, move_slots(old, start, path))
            assert not np.array_equal(new, old)


def test_a_chain_path_moves_nothing():
    cache, path = kv_cache(), jnp.broadcast_to(jnp.arange(1, 5), (B, 4))
    moved = cache.compact(jnp.asarray([0, 2, 5]), path)
    jax.tree.map(np.testing.assert_array_equal, moved, cache)


def test_insert_replaces_one_row():
    cache, one = kv_cache(), jax.tree.map(lambda x: x[:1], kv_cache(seed=9))
    out = jax.jit(type(cache).insert)(cache, jnp.asarray(1), one)
    for old, new, row in zip(*map(jax.tree.leaves, (cache, out, one)), strict=True):
        np.testing.assert_array_equal(new[1], row[0])
        np.testing.assert_array_equal(new[::2], old[::2])


def test_a_layer_is_written_alone():
    cache = kv_cache()
    new = (jnp.ones((B, 2, 2, 3)), jnp.full((B, 2, 2, 3), 2.0))
    out = cache.write(1, new, jnp.asarray([0, 3, 9]), jnp.asarray([2, 1, 0]))
    assert out.layers[0] is cache.layers[0]
    keys, values = out.layers[1]
    assert (keys[0, :2] == 1).all()
    assert (values[1, 3] == 2).all()
    np.testing.assert_array_equal(keys[2], cache.layers[1][0][2])
    np.testing.assert_array_equal(values[1, 4:], cache.layers[1][1][1, 4:])


def test_a_fresh_cache_shares_no_buffer():
    """Otherwise it could not be donated."""
    leaves = jax.tree.leaves(KVCache.zeros(2, 4, 2, 8, jnp.float32, windows=(None, 3, None)))
    assert [x.shape for x in leaves] == [(2, 4, 16)] * 6
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == 6


def test_caches_are_told_from_other_state():
    assert isinstance(kv_cache(), Cache)
    assert isinstance(TokenCache(jnp.zeros((1, 1), int), jnp.zeros((1, 1), int)), Cache)
    assert not isinstance(jnp.zeros(3), Cache)
