"""A real decoder, random and tiny: everything that a large one has, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Key

from specjax.models import Config, DecoderLM, LayerKind, random_weights
from specjax.models.rope import Rope

_KIND = LayerKind(Rope(8))


def tiny_lm(
    key: Key[Array, ""],
    *,
    vocab_size: int = 61,
    layers: Sequence[LayerKind] = (_KIND, _KIND),
    **changes,
) -> DecoderLM:
    """A llama-like model of two layers and grouped-query attention; ``changes`` go to Config."""
    config = Config(
        **{
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "layers": tuple(layers),
            "max_length": 512,
            **changes,
        }
    )
    return DecoderLM(random_weights(config, key, jnp.float32), config)
