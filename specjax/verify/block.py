"""Block verification: judge the draft as a whole, which keeps more of it (chains only)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from specjax.types import Draft, Verdict


@struct.dataclass
class Block:
    """Keep the longest prefix i whose coin passes u_i < h_i, even after earlier coins failed.

    Proof: with P_i = min(P_{i-1} p_i/q_i, 1) the prefixes kept up to i carry the mass of the target
    that the draft can cover, and (P_i p_{i+1} - q_{i+1})+ is exactly what is missing after i.
    Sun et al., ICLR 2025 (arXiv 2403.10444), Alg. 2. Never keeps fewer tokens in expectation
    than token verification.
    """

    coupled: bool = struct.field(pytree_node=False, default=False)
    exact: bool = struct.field(pytree_node=False, default=True)
    branching: bool = struct.field(pytree_node=False, default=False)

    def accept(self, draft: Draft, p: Float[Array, "B M V"], coins: Float[Array, "B N"]) -> Verdict:
        """Take the last coin that passes; ``thresholds`` says what each has to pass."""
        batch, num = draft.tokens.shape
        h, missing = self.thresholds(draft, p)
        index = jnp.arange(1, num + 1, dtype=jnp.int32)
        num_accepted = jnp.where(coins < h, index, 0).max(axis=1, initial=0)
        rows = jnp.arange(batch)
        rest = missing[rows, num_accepted]
        total = rest.sum(-1, keepdims=True)
        last = jnp.where(total > 0, rest / jnp.where(total > 0, total, 1), p[rows, num_accepted])
        return Verdict(num_accepted, jnp.broadcast_to(index, (batch, num)), last)

    def thresholds(
        self, draft: Draft, p: Float[Array, "B M V"]
    ) -> tuple[Float[Array, "B N"], Float[Array, "B M V"]]:
        """h of every prefix, 0 beyond what was drafted, and (P_i p_{i+1} - q_{i+1})+ after each."""
        drafted = jnp.cumprod(draft.valid, axis=1, dtype=jnp.int32).astype(bool)
        q = drafted_law(draft, drafted, p)
        covered = cover(draft, p, q)
        missing = jnp.maximum(covered[..., None] * p - q, 0)
        # Where no token is allowed the text ends: an end symbol of mass 1 that no draft covers.
        mass = missing.sum(-1) + jnp.where(p.sum(-1) > 0, 0, covered)
        # At the row's last drafted node q is zero, so h = P follows by itself.
        weight = mass + 1 - covered
        h = jnp.where(weight > 0, mass / jnp.where(weight > 0, weight, 1), 1)
        return jnp.where(drafted, h[:, 1:], 0), missing


def drafted_law(
    draft: Draft, drafted: Bool[Array, "B N"], p: Float[Array, "B M V"]
) -> Float[Array, "B M V"]:
    """q of the token after each node, zero where the row drafted none."""
    q = draft.probs
    if q is None:
        q = jax.nn.one_hot(draft.tokens, p.shape[-1], dtype=p.dtype)
    q = jnp.where(drafted[..., None], q.astype(p.dtype), 0)
    return jnp.pad(q, ((0, 0), (0, 1), (0, 0)))


def cover(draft: Draft, p, q) -> Float[Array, "B M"]:
    """P_0 = 1, P_i = min(P_{i-1} p_i(x_i) / q_i(x_i), 1), clamped at every step."""
    token = draft.tokens[..., None]
    p_x = jnp.take_along_axis(p[:, :-1], token, axis=-1)[..., 0]
    q_x = jnp.take_along_axis(q[:, :-1], token, axis=-1)[..., 0]
    steps = [jnp.ones(p.shape[0], p.dtype)]
    for i in range(draft.tokens.shape[1]):
        mass = steps[-1] * p_x[:, i]
        # Dividing first would give NaN where P is 0 and q is subnormal.
        full = mass >= q_x[:, i]
        steps.append(jnp.where(full, 1, mass / jnp.where(full, 1, q_x[:, i])))
    return jnp.stack(steps, axis=1)
