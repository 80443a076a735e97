"""Prompt lookup: what followed the last time the text ended like this, found on the device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct

from specjax import tree
from specjax.drafters.chain import Chain, at_least_one
from specjax.matches import longest_match
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class NGram(Chain):
    """Copy what followed the most recent longest match of the last ``max_ngram`` tokens.

    Point masses: nothing is lost under coupled verification. Needs no model and no training.
    The kind of a draft is the length of its match, 0 where there is none.
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

    @property
    def num_kinds(self) -> int:
        return self.max_ngram + 1

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
        found = matched >= self.min_ngram
        valid = (found & draw.active)[:, None] & (ahead < draw.cap[:, None])
        parent = tree.chain_parents(tokens.shape[0], width)
        return Draft(tokens, parent, valid, kind=jnp.where(found, matched, 0)), state, cache
