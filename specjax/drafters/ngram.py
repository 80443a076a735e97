"""Prompt lookup: what followed the last time the text ended like this, found on the device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from specjax import tree
from specjax.drafters.chain import Chain, at_least_one
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class NGram(Chain):
    """Copy what followed the most recent longest match of the last ``max_ngram`` tokens.

    Point masses: nothing is lost under coupled verification. Needs no model and no training.
    Saxena 2023 (prompt lookup decoding).
    """

    draft_length: int = struct.field(pytree_node=False, default=4)
    max_ngram: int = struct.field(pytree_node=False, default=3)
    min_ngram: int = struct.field(pytree_node=False, default=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("min_ngram", self.min_ngram)
        at_least_one("max_ngram", self.max_ngram)
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram: must be at most max_ngram, got {self.min_ngram} and {self.max_ngram}"
            )

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Draft the continuation of the best match; nothing where there is none."""
        matched, at = longest_match(context, self.max_ngram)
        period = context.length - 1 - at
        ahead = jnp.arange(width, dtype=jnp.int32)
        # A continuation that reaches the end of the text goes round again: a loop is a loop.
        source = at[:, None] + 1 + ahead % jnp.maximum(period, 1)[:, None]
        tokens = jnp.take_along_axis(context.tokens, source, axis=1)
        found = (matched >= self.min_ngram) & draw.active
        valid = found[:, None] & (ahead < draw.cap[:, None])
        parent = tree.chain_parents(tokens.shape[0], width)
        return Draft(tokens, parent, valid), state, cache


def longest_match(context: Context, max_ngram: int) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Length of the longest earlier copy of each row's last tokens, and where it ends.

    Of equally long copies the most recent one; (0, 0) where there is none.
    """
    tokens, length = context.tokens, context.length[:, None]
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    run = jnp.zeros_like(tokens)
    going = place < length - 1  # never the text's own end
    for back in range(max_ngram):
        last = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0), axis=1)
        earlier = jnp.pad(tokens, ((0, 0), (back, 0)))[:, : tokens.shape[1]]
        going = going & (earlier == last) & (place >= back)
        run = run + going.astype(jnp.int32)
    score = run * tokens.shape[1] + place
    at = jnp.where(run > 0, score, -1).argmax(1).astype(jnp.int32)
    return jnp.take_along_axis(run, at[:, None], axis=1)[:, 0], at
