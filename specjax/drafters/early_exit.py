"""The target's first layers draft, and what they computed is not computed again."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from specjax import tree
from specjax.drafters.chain import Chain, at_least_one
from specjax.drafters.growing import Growing
from specjax.drafters.own_cache import shown_layers
from specjax.once import once
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Leaving:
    """A chain half drawn, the states of its nodes, and the rows whose newest node has none yet."""

    chain: Growing
    hidden: Float[Array, "B M D"]
    unfed: Bool[Array, " B"]


@struct.dataclass
class EarlyExit(Chain):
    """Draft with the target's first ``num_layers`` and its own head (Elhoushi et al. 2024).

    LayerSkip's self-speculation; it needs no training, but pays where the target was trained to
    leave early. The first layers write their part of the target's own cache, and verification
    goes on from their states: it runs the remaining layers only.
    """

    num_layers: int = struct.field(pytree_node=False)
    draft_length: int = struct.field(pytree_node=False, default=4)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("num_layers", self.num_layers)

    @property
    def samples(self) -> bool:
        return True

    def validate(self, target: Any) -> None:
        """Refuse a target that has no layer to leave after.

        Raises:
            ValueError: the target shows no layers, or has no more than ``num_layers``.
        """
        num = shown_layers(target, type(self).__name__)
        if self.num_layers >= num:
            raise ValueError(
                f"num_layers: must be less than the target's {num} layers, got "
                f"{self.num_layers}; leave earlier"
            )

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Draw ``width`` tokens one after the other; hand on the states of all that is fed.

        Rows that do not draft need the newest token's state, and the last token drawn needs one,
        too: those passes go without a head.
        """

        def step(leaving):
            leaving = self._feed(target, leaving, context)
            at = jnp.broadcast_to(leaving.chain.num, context.length.shape)
            logits = target.unembed(tree.at_nodes(leaving.hidden, at[:, None]))
            chain = leaving.chain.append(logits, draw)
            return dataclasses.replace(leaving, chain=chain, unfed=chain.node.alive[:, 0])

        def goes_on(leaving):
            node, num = leaving.chain.node, leaving.chain.num
            return (num < width) & (node.alive[:, 0] & (node.depth[:, 0] < draw.cap)).any()

        seen = jax.eval_shape(target.embed, context.newest())
        leaving = Leaving(
            chain=Growing.begin(draw, cache, width, target.vocab_size),
            hidden=jnp.zeros((seen.shape[0], width + 1, seen.shape[2]), seen.dtype),
            unfed=draw.active,
        )
        leaving = jax.lax.while_loop(goes_on, step, leaving)
        leaving = once(leaving.unfed.any(), lambda left: self._feed(target, left, context), leaving)
        chain = leaving.chain
        draft = Draft(
            tokens=chain.tokens,
            parent=tree.chain_parents(chain.tokens.shape[0], width),
            valid=chain.valid,
            probs=chain.probs,
            hidden=leaving.hidden,
            remaining=tuple(range(self.num_layers, target.num_layers)),
        )
        return draft, state, chain.cache

    def _feed(self, target: Any, leaving: Leaving, context: Context) -> Leaving:
        """Run the first layers over the newest node of each row that has one."""
        chain = leaving.chain
        fed = jnp.concatenate([context.newest(), chain.tokens], axis=1)
        hidden, cache, _ = target.extend(
            jax.lax.dynamic_slice_in_dim(fed, chain.num, 1, axis=1),
            context.length - 1 + chain.num,
            chain.cache,
            count=leaving.unfed.astype(jnp.int32),
            layers=range(self.num_layers),
        )
        return Leaving(
            chain=dataclasses.replace(chain, cache=cache),
            hidden=jax.lax.dynamic_update_slice_in_dim(leaving.hidden, hidden, chain.num, 1),
            unfed=jnp.zeros_like(leaving.unfed),
        )
