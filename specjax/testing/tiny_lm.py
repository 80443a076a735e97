"""A real decoder, random and tiny: everything that a large one has, in milliseconds."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Key

from specjax.models import Config, DecoderLM, random_weights
from specjax.models.rope import Rope


def tiny_lm(
    key: Key[Array, ""], *, vocab_size: int = 61, num_layers: int = 2, **changes
) -> DecoderLM:
    """A llama-like model of two layers and grouped-query attention; ``changes`` go to Config."""
    config = Config(
        **{
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": num_layers,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "rope": Rope(8),
            "max_length": 512,
            **changes,
        }
    )
    return DecoderLM(random_weights(config, key, jnp.float32), config)
