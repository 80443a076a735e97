"""Constrained decoding on the device: a mask that follows an automaton along each node's path."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.automaton import Automaton
from specjax.types import Sampling


@struct.dataclass
class Constraint:
    """The processor that allows only what a row's grammar allows (Willard and Louf, 2023).

    ``Sampling.grammar`` is the state in which a row starts; state 0 allows everything, for rows
    without a grammar. Stop ids are allowed besides exactly where a text may end, in ``final``
    states. Where not even they are, the row ends by name: "dead_end".

    ``only[s]`` is the single allowed token of state s, -1 where there are more or where the text
    may end; ``likely[s]`` is that token too, and where one *text* must follow in any of several
    spellings, the longest token of it.
    """

    automaton: Automaton
    final: Bool[Array, " S"]
    only: Int[Array, " S"]
    likely: Int[Array, " S"]

    def init(
        self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling
    ) -> Int[Array, ""]:
        """Start where the row says; the prompt is no part of the text."""
        if row.grammar is None:
            return jnp.zeros((), jnp.int32)
        return row.grammar.astype(jnp.int32) + 0

    def advance(self, h: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        """Follow a token; one that is not allowed (a stop id) changes nothing."""
        following = self.automaton.step(h, token)
        return jnp.where(following >= 0, following, h)

    def follow(
        self, h: Int[Array, ""], path: Int[Array, " K"], depth: Int[Array, ""]
    ) -> Int[Array, ""]:
        """Advance over the first ``depth`` tokens of a path, which may be empty."""

        def step(h, ahead):
            place, token = ahead
            return jnp.where(place < depth, self.advance(h, token), h), None

        return jax.lax.scan(step, h, (jnp.arange(path.shape[0], dtype=jnp.int32), path))[0]

    def apply(
        self, logits: Float[Array, " V"], h: Int[Array, ""], row: Sampling
    ) -> Float[Array, " V"]:
        """Mask what the grammar does not allow."""
        ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
        stops = (ids[:, None] == row.stop_ids).any(-1)
        allowed = self.automaton.allowed(h) | (stops & self.final[h])
        return jnp.where(allowed, logits, -jnp.inf)

    def forced(self, h: Int[Array, ""]) -> Int[Array, ""]:
        """The one token that is allowed, -1 where there is a choice or the text may end."""
        return self.only[h]

    def run(self, h: Int[Array, " B"], num: int) -> Int[Array, "B T"]:
        """The next tokens of each row as far as the grammar tells them, then -1."""

        def step(h, _):
            token = self.likely[h]
            moved = jax.vmap(self.advance)(h, jnp.maximum(token, 0))
            return jnp.where(token >= 0, moved, h), token

        # After the first -1 the state stays, and so does the -1.
        return jax.lax.scan(step, h, length=num)[1].T
