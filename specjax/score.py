"""How likely a target finds given tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def score_tokens(
    target: Any, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, chunk: int
) -> Float[Array, "B L"]:
    """Log-probability, in nats, of each token given all before it, at temperature 1.

    Position 0 and all at or beyond ``length`` are 0. The head runs on one chunk at a time, since
    logits over a whole text would be gigabytes.
    """
    batch, size = tokens.shape
    padded = jnp.pad(tokens, ((0, 0), (0, chunk + 1)))

    def step(carry):
        first, cache, scores = carry
        here = jax.lax.dynamic_slice_in_dim(padded, first, chunk + 1, axis=1)
        begin = jnp.broadcast_to(first, length.shape)
        count = jnp.clip(length - first, 0, chunk)
        hidden, cache, _ = target.extend(here[:, :-1], begin, cache, count=count)
        laws = jax.nn.log_softmax(target.unembed(hidden))
        found = jnp.take_along_axis(laws, here[:, 1:, None], axis=-1)[..., 0]
        scores = jax.lax.dynamic_update_slice_in_dim(scores, found, first + 1, axis=1)
        return first + chunk, cache, scores

    scores = jnp.zeros((batch, size + chunk + 1), jnp.float32)
    carry = (jnp.zeros((), jnp.int32), target.init_cache(batch, size, scratch=chunk), scores)
    *_, scores = jax.lax.while_loop(lambda c: c[0] < length.max() - 1, step, carry)
    place = jnp.arange(size, dtype=jnp.int32)
    return jnp.where((place > 0) & (place < length[:, None]), scores[:, :size], 0)
