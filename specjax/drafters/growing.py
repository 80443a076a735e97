"""A chain that is drawn token by token, inside a loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.protocols import Draw
from specjax.types import Node


@struct.dataclass
class Growing:
    """A chain half drawn: ``num`` tokens so far, ``node`` the frontier at its end.

    ``cache`` is that of the model whose logits it is drawn from.
    """

    num: Int[Array, ""]
    node: Node
    cache: Any
    tokens: Int[Array, "B K"]
    valid: Bool[Array, "B K"]
    probs: Float[Array, "B K V"] | None

    @classmethod
    def begin(cls, draw: Draw, cache: Any, width: int, vocab_size: int) -> Growing:
        """Start at the newest token, with room for ``width`` more."""
        root = draw.root()
        batch = root.alive.shape[0]
        return cls(
            num=jnp.zeros((), jnp.int32),
            node=root,
            cache=cache,
            tokens=jnp.zeros((batch, width), jnp.int32),
            valid=jnp.zeros((batch, width), bool),
            probs=jnp.zeros((batch, width, vocab_size), float) if draw.records_law else None,
        )

    def append(self, logits: Float[Array, "B 1 W"], draw: Draw) -> Growing:
        """Draw the next token of every row."""
        drawn = draw(logits, self.node)

        def put(old, new):
            return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.num, 1)

        node = jax.tree.map(lambda x: x[:, :, 0], drawn.children)
        return dataclasses.replace(
            self,
            num=self.num + 1,
            node=node,
            tokens=put(self.tokens, drawn.tokens[:, 0]),
            valid=put(self.valid, node.alive),
            probs=None if drawn.law is None else put(self.probs, drawn.law[:, 0]),
        )
