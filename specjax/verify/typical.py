"""Typical acceptance: keep what the target finds likely enough. Lossy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from specjax import tree
from specjax.types import Draft, Verdict


@struct.dataclass
class Typical:
    """Accept x iff p(x) > min(epsilon, delta exp(-H(p))), and keep the longest such path. Lossy.

    H is the entropy of p in nats: the less certain the target, the less likely a token may be.
    Nothing is drawn, so what comes out does *not* follow p at temperature > 0: there it takes
    likely drafts more often than the target would. At temperature 0 it gives the target's very
    tokens. Never a default. Cai et al. 2024 (Medusa, arXiv 2401.10774), typical acceptance.

    Args:
        epsilon: the highest probability ever asked for, between 0 and 1.
        delta: how far a token may lie below the typical probability exp(-H), between 0 and 1.

    Raises:
        ValueError: ``epsilon`` or ``delta`` is no number between 0 and 1.
    """

    epsilon: float | Float[Array, ""] = 0.09
    delta: float | Float[Array, ""] = 0.3
    coupled: bool = struct.field(pytree_node=False, default=False)
    exact: bool = struct.field(pytree_node=False, default=False)
    branching: bool = struct.field(pytree_node=False, default=True)

    def __post_init__(self) -> None:
        _between_0_and_1("epsilon", self.epsilon)
        _between_0_and_1("delta", self.delta)

    def accept(self, draft: Draft, p: Float[Array, "B M V"], coins: Float[Array, "B N"]) -> Verdict:
        """Take the deepest node reached through acceptable ones, the first of equally deep ones."""
        rows = jnp.arange(p.shape[0])
        chance = p[rows[:, None], draft.parent, draft.tokens]
        least = jnp.take_along_axis(self.thresholds(p), draft.parent, axis=1)
        reached = tree.reachable(draft.parent, draft.valid & (chance > least))
        depth = jnp.where(reached, tree.depths(draft.parent)[:, 1:], 0)
        depth = jnp.pad(depth, ((0, 0), (1, 0)))
        best = depth.argmax(1)
        path = tree.paths(draft.parent, draft.tokens.shape[1])[rows, best]
        return Verdict(depth[rows, best], path, p[rows, best])

    def thresholds(self, p: Float[Array, "*B V"]) -> Float[Array, "*B"]:
        """What the probability of a token has to exceed after each node."""
        entropy = -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum(-1)
        epsilon, delta = (jnp.asarray(x, p.dtype) for x in (self.epsilon, self.delta))
        return jnp.minimum(epsilon, delta * jnp.exp(-entropy))


def _between_0_and_1(name: str, value: Any) -> None:
    """Check what a user gives; arrays are left alone, as they may be traced."""
    if not isinstance(value, bool | int | float | str | np.generic):
        return
    number = not isinstance(value, bool | str) and np.isreal(value)
    if not number or not 0 < float(value) < 1:
        raise ValueError(f"{name}: must be a number between 0 and 1, got {value!r}")
