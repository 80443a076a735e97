"""Draft what a grammar leaves no choice about."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct

from specjax import tree
from specjax.constraint import Constraint
from specjax.drafters.chain import Chain
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Forced(Chain):
    """Draft the run of tokens that the grammar forces, where it forces any (jump-forward decoding).

    A token that is the only one allowed is always accepted. Where one text must follow but may be
    spelled in several ways, its longest token is drafted: a guess, judged like every other. Without
    a ``Constraint`` among the processors nothing is drafted.
    """

    draft_length: int = struct.field(pytree_node=False, default=4)

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Draft each row's run as far as the cap."""
        batch = context.tokens.shape[0]
        found = draw.find(Constraint)
        run = jnp.full((batch, width), -1, jnp.int32)
        if found is not None:
            constraint, states = found
            run = constraint.run(states, width)
        ahead = jnp.arange(width, dtype=jnp.int32)
        valid = (run >= 0) & draw.active[:, None] & (ahead < draw.cap[:, None])
        return Draft(jnp.maximum(run, 0), tree.chain_parents(batch, width), valid), state, cache
