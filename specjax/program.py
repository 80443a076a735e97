"""What a program is made of: a target, a drafter, a verifier, and what shapes drafts and laws."""

from __future__ import annotations

from typing import Any

from flax import struct

from specjax import sampling
from specjax.protocols import Feedback, Policy, Processor, StoppingRule
from specjax.sharding import Layout
from specjax.stops import StopStrings


@struct.dataclass
class Program:
    """What every round runs: weights and stores are leaves, everything else is static.

    ``draft_processors`` is the drafter's own chain; None gives it the target's. ``stops`` finds
    strings that end a row. ``stopping`` ends drafts while they are drawn, ``policy`` bounds them
    before. ``widths`` are the numbers of draft nodes that the target's pass is compiled for (None:
    all nodes of a draft, always). Ids from ``num_tokens`` on are padding, which no token may be.
    ``layout`` cuts states between rows on a mesh.
    """

    target: Any
    drafter: Any
    verifier: Any
    processors: tuple[Processor, ...] = sampling.FILTERS
    draft_processors: tuple[Processor, ...] | None = None
    stops: StopStrings | None = None
    stopping: StoppingRule | None = None
    policy: Policy | None = None
    num_tokens: int | None = struct.field(pytree_node=False, default=None)
    widths: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    layout: Layout | None = struct.field(pytree_node=False, default=None)

    @property
    def is_chain(self) -> bool:
        """A chain needs no mask, and its accepted path is contiguous as it was fed."""
        return self.drafter.num_nodes == self.drafter.depth

    def laid_out(self, tree: Any) -> Any:
        """Cut arrays [B, ...] between the rows of the mesh, if there is one."""
        return tree if self.layout is None else self.layout.rows(tree)

    @property
    def num_kinds(self) -> int:
        """How many kinds of drafts the drafter tells apart."""
        return getattr(self.drafter, "num_kinds", 1)

    @property
    def passes(self) -> tuple[int, ...]:
        """Numbers of draft nodes that a pass may feed, ascending; the last feeds all."""
        num = self.drafter.num_nodes
        if self.widths is None or isinstance(self.drafter, Feedback):
            return (num,)
        return (*sorted({width for width in self.widths if width < num}), num)

    @property
    def rows_independent(self) -> bool:
        """Whether a row decodes the same alone and in any batch."""
        return self.drafter.rows_independent and (
            self.policy is None or self.policy.rows_independent
        )
