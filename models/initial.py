"""Random weights, for tests and for timing: what they say does not matter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from specjax.models.config import Config
from specjax.models.layers import Weights, is_in_out, pack, parameters


def initial(config: Config, path: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and deviation of a random weight: a norm is 1, all else fan_in ** -0.5 around 0."""
    if path.endswith("norm.scale"):
        return 1.0 - config.norm_offset, 0.0
    fan_in = shape[-2] if is_in_out(path) else shape[-1]
    return 0.0, fan_in**-0.5


def random_weights(config: Config, key: Key[Array, ""], dtype=jnp.float32) -> Weights:
    """Weights for tests: norms are 1, all else normal with deviation fan_in ** -0.5."""

    def leaf(index: int, path: str, shape: tuple[int, ...]) -> Array:
        mean, deviation = initial(config, path, shape)
        if deviation == 0:
            return jnp.full(shape, mean, dtype)
        noise = jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
        return (noise * np.float32(deviation)).astype(dtype)

    table = parameters(config)
    return pack({path: leaf(i, path, one.shape) for i, (path, one) in enumerate(table.items())})
