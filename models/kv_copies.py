"""More devices than key heads: weights and cache hold each key head several times.

Every device then has key heads of its own, and no cache is ever gathered. The copies of a key head
share its query heads among them, so the model computes what it did.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped

from specjax.models.config import Config
from specjax.sharding import Layout


def sharded(config: Config, layout: Layout) -> Config:
    """The configuration to run on a mesh: with the fewest copies that give each device key heads.

    Where no number of copies does (the query heads do not divide either), attention is whole on
    every device. A TPU pads channels to 128 anyway, and copies whole caches that have fewer: there
    a device is given that many, if the copies reach.
    """
    num, shared = layout.size("kv_heads"), config.num_heads // config.num_kv_heads
    copies = [c for c in range(1, shared + 1) if shared % c == 0]
    fitting = [c for c in copies if config.num_kv_heads * c % num == 0]
    if num > 1:
        channels = config.num_kv_heads * config.head_dim
        fitting = [c for c in fitting if c * channels >= num * layout.lanes] or fitting
    return dataclasses.replace(config, kv_copies=fitting[0] if fitting else 1)


def is_copied(config: Config, path: str) -> bool:
    """Whether the weight at ``path`` holds anything several times."""
    return _published_channels(config, path) is not None


def with_copies(config: Config, path: str, leaf: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """The weight at ``path`` as ``config`` holds it, from one of a model without copies."""
    channels = _published_channels(config, path)
    return leaf if channels is None else jnp.take(leaf, channels, axis=_axis(path))


def without_copies(config: Config, path: str, leaf: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """The inverse of ``with_copies``."""
    channels = _published_channels(config, path)
    if channels is None:
        return leaf
    return jnp.take(leaf, np.unique(channels, return_index=True)[1], axis=_axis(path))


def _published_channels(config: Config, path: str) -> Int[np.ndarray, " C"] | None:
    """Which channel of the model without copies each channel is; None where all are the same."""
    heads, copies, size = config.num_kv_heads, config.kv_copies, config.head_dim
    if copies == 1:
        return None
    if ".qkv." in path:
        shared = config.num_heads // heads
        all_heads = np.arange(heads * (shared + 2)).reshape(heads, shared + 2)
        queries = all_heads[:, :-2].reshape(heads, copies, -1)
        pairs = np.repeat(all_heads[:, None, -2:], copies, axis=1)
        held = np.concatenate([queries, pairs], axis=2).reshape(-1)
    elif path.endswith("key_norm.scale") and config.head_norm == "all":
        held = np.repeat(np.arange(heads), copies)
    else:
        return None
    return (held[:, None] * size + np.arange(size)).reshape(-1)


def _axis(path: str) -> int:
    """The axis of the channels: [out, in] in eight bits, else the last."""
    return -2 if path.endswith(".weight") else -1
