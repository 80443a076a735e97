"""No draft at all: plain decoding through the same loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct

from specjax import tree
from specjax.drafters.chain import Chain
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Plain(Chain):
    """Propose nothing, so that each round is one ordinary step of the target.

    With a ``draft_length`` the pass is as wide as that of a speculative run, its drafts never
    valid: parity mode, for comparing the two without the rounding of passes of other widths.
    """

    draft_length: int = struct.field(pytree_node=False, default=0)

    def __post_init__(self) -> None:
        if self.draft_length:
            super().__post_init__()

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Return nothing that could be accepted."""
        batch = context.tokens.shape[0]
        none = jnp.zeros((batch, width), jnp.int32)
        return Draft(none, tree.chain_parents(batch, width), none.astype(bool)), state, cache
