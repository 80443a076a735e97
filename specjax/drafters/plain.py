"""No draft at all: plain decoding through the same loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct

from specjax.drafters.chain import Chain
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Plain(Chain):
    """Propose nothing, so that each round is one ordinary step of the target."""

    draft_length: int = struct.field(pytree_node=False, default=0)

    def __post_init__(self) -> None:
        if self.draft_length != 0:
            raise ValueError("draft_length: plain decoding has none; use another drafter")

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Return an empty draft."""
        none = jnp.zeros((context.tokens.shape[0], 0), jnp.int32)
        return Draft(none, none, none.astype(bool)), state, cache
