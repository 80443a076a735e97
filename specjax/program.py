"""What a program is made of: a target, a drafter, a verifier, and the processors of both."""

from __future__ import annotations

from typing import Any

from flax import struct

from specjax import sampling
from specjax.protocols import Processor
from specjax.stops import StopStrings


@struct.dataclass
class Program:
    """What every round runs: weights and stores are leaves, everything else is static.

    ``draft_processors`` is the drafter's own chain; None gives it the target's. ``stops`` finds
    strings that end a row. Ids from ``num_tokens`` on are padding, which no token may be.
    """

    target: Any
    drafter: Any
    verifier: Any
    processors: tuple[Processor, ...] = sampling.FILTERS
    draft_processors: tuple[Processor, ...] | None = None
    stops: StopStrings | None = None
    num_tokens: int | None = struct.field(pytree_node=False, default=None)

    @property
    def is_chain(self) -> bool:
        """A chain needs no mask, and its accepted path is contiguous as it was fed."""
        return self.drafter.num_nodes == self.drafter.depth
