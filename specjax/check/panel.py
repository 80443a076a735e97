"""Several ratio rules in one program, each row judged by its own: one compilation serves all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.protocols import Verifier
from specjax.types import Draft, Verdict


@struct.dataclass
class Panel:
    """Row b is judged by ``rules[choice[b]]``, for its whole life; none of them is coupled."""

    rules: tuple[Verifier, ...]
    choice: Int[Array, " B"]
    coupled: bool = struct.field(pytree_node=False, default=False)
    exact: bool = struct.field(pytree_node=False, default=True)

    @property
    def branching(self) -> bool:
        """Whether all of them allow it."""
        return all(rule.branching for rule in self.rules)

    def accept(self, draft: Draft, p: Float[Array, "B M V"], coins: Float[Array, "B N"]) -> Verdict:
        """Ask every rule, and take each row from its own."""
        verdicts = [rule.accept(draft, p, coins) for rule in self.rules]
        rows = jnp.arange(len(self.choice))
        return jax.tree.map(lambda *x: jnp.stack(x)[self.choice, rows], *verdicts)
