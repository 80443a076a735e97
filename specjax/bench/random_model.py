"""Models of random weights, each made where it is to lie: time does not depend on what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from specjax.models import Config, DecoderLM, sharded, weight_sharding
from specjax.models.initial import initial
from specjax.models.layers import pack, parameters
from specjax.sharding import Layout


def random_model(
    config: Config, layout: Layout | None = None, dtype: str = "float32", seed: int = 0
) -> DecoderLM:
    """Make a model as ``models.initial.initial`` says.

    On a mesh no device ever holds more than its part. Copies of key heads are random like all else.
    """
    key = jax.random.key(seed)
    if layout is not None:
        config = sharded(config, layout)
    leaves = {}
    for index, (path, one) in enumerate(parameters(config).items()):
        sharding = None if layout is None else weight_sharding(config, layout, one)
        make = _maker(one.shape, dtype, sharding)
        leaves[path] = make(key, index, *map(np.float32, initial(config, path, one.shape)))
    return DecoderLM(pack(leaves), config, layout=layout)


@lru_cache
def _maker(shape: tuple[int, ...], dtype: str, sharding: Sharding | None) -> Callable[..., Any]:
    """Weights of one shape, compiled once for all layers."""

    def make(key, index, mean, deviation):
        noise = jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
        return (noise * deviation + mean).astype(dtype)

    return jax.jit(make, out_shardings=sharding)
