"""How likely the emitted tokens were, kept beside them for calls that ask."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.cache import write_slots
from specjax.tree import at_nodes


@struct.dataclass
class Record:
    """Log-probabilities in nats of the tokens at the same place, 0 where none was emitted.

    ``raw`` is the model's own, at temperature 1; ``processed`` is that of the law after all
    processors (at temperature 0: after all but the choice of the largest). ``top`` are the
    likeliest tokens of the raw law with their log-probabilities, likeliest first.
    """

    raw: Float[Array, "B L"]
    processed: Float[Array, "B L"]
    top: Float[Array, "B L T"]
    top_ids: Int[Array, "B L T"]

    @classmethod
    def empty(cls, batch: int, capacity: int, num_top: int) -> Record:
        """Allocate a record of ``num_top`` alternatives a token."""
        shape = (batch, capacity)
        return cls(
            raw=jnp.zeros(shape, jnp.float32),
            processed=jnp.zeros(shape, jnp.float32),
            top=jnp.zeros((*shape, num_top), jnp.float32),
            top_ids=jnp.zeros((*shape, num_top), jnp.int32),
        )

    def write(
        self,
        logits: Float[Array, "B M V"],
        processed: Float[Array, "B M V"],
        nodes: Int[Array, "B E"],
        emitted: Int[Array, "B E"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
    ) -> Record:
        """Note the first ``count`` emitted tokens; token j was drawn after ``nodes[:, j]``."""
        laws = jax.nn.log_softmax(logits)
        top, top_ids = jax.lax.top_k(laws, self.top.shape[-1])
        found = Record(
            raw=_of_tokens(laws, nodes, emitted),
            processed=_of_tokens(jax.nn.log_softmax(processed), nodes, emitted),
            top=at_nodes(top, nodes),
            top_ids=at_nodes(top_ids.astype(jnp.int32), nodes),
        )

        def put(old, new):
            return write_slots(old, new.astype(old.dtype), start, count)

        return jax.tree.map(put, self, found)


def _of_tokens(laws, nodes, tokens):
    """Pick, for each token, its entry of the law after its node."""
    return jax.vmap(lambda law, node, token: law[node, token])(laws, nodes, tokens)
