"""Attention over the cache, block by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.nn import attention


def naive_attention(query, keys, values, seen):
    """Softmax over the slots seen, in float64."""
    query, keys, values = (np.asarray(x, np.float64) for x in (query, keys, values))
    shared = query.shape[2] // keys.shape[2]
    keys, values = (np.repeat(x, shared, axis=2) for x in (keys, values))
    scores = np.einsum("bthd,bshd->bhts", query, keys) * query.shape[-1] ** -0.5
    weights = np.where(seen[:, None], np.exp(scores), 0)
    return np.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdims=True), values)


@pytest.mark.parametrize("block", [1, 4, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_by_blocks_equals_attention_at_once(block, masked):
    length, window, capacity = 3, 5, 10
    start, count = jnp.array([0, 4, 7]), jnp.array([3, 3, 3])
    keys = jax.random.split(jax.random.key(2), 4)
    query = jax.random.normal(keys[0], (3, length, 4, 8))
    cached, values = jax.random.normal(keys[1], (2, 3, capacity, 2, 8))
    slots = np.arange(capacity)
    newest = np.asarray(start)[:, None] + np.arange(length)
    seen, mask = slots <= newest[..., None], None
    if masked:
        mask = jax.random.bernoulli(keys[2], 0.5, (3, length, window)).at[:, :, -length:].set(True)
        at = slots - (np.asarray(start)[:, None] + length - window)
        inside = np.asarray(mask)[np.arange(3)[:, None], :, at.clip(0, window - 1)].swapaxes(1, 2)
        seen = np.where((at < 0)[:, None], True, inside) & (at < window)[:, None]
    blockwise = jax.jit(attention, static_argnames="block")
    joined = (x.reshape(3, capacity, -1) for x in (cached, values))
    found = blockwise(query, *joined, start, count, mask, block=block)
    np.testing.assert_allclose(found, naive_attention(query, cached, values, seen), atol=1e-5)
