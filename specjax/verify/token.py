"""Token verification: accept each draft token on its own, in order (chains and trees)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.types import Draft, Verdict


def node_law(draft: Draft, node: int | Int[Array, ""], size: int, dtype) -> Float[Array, "B V"]:
    """Law that node ``node`` (from 1) was drawn from; one-hot where drafts are point masses."""
    if draft.probs is not None:
        return draft.probs[:, node - 1].astype(dtype)
    return jax.nn.one_hot(draft.tokens[:, node - 1], size, dtype=dtype)


def residual(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """norm(max(p - q, 0)); p itself where nothing is left in floating point."""
    rest = jnp.maximum(p - q, 0)
    total = rest.sum(-1, keepdims=True)
    return jnp.where(total > 0, rest / jnp.where(total > 0, total, 1), p)


@struct.dataclass
class Token:
    """Accept x with probability min(1, p(x)/q(x)), else go on with norm((p - q)+).

    Proof: acceptance emits x with q(x) min(1, p(x)/q(x)) = min(p, q)(x), a rejection (probability
    sum (p - q)+, the residual's normaliser) emits x with (p - q)+(x); the sum is p(x).
    Siblings apply the same step to what the earlier ones left. Leviathan et al. 2023, Alg. 1;
    Chen et al. 2023; for trees Miao et al. 2024 (SpecInfer).
    """

    coupled: bool = struct.field(pytree_node=False, default=False)
    exact: bool = struct.field(pytree_node=False, default=True)
    branching: bool = struct.field(pytree_node=False, default=True)

    def accept(self, draft: Draft, p: Float[Array, "B M V"], coins: Float[Array, "B N"]) -> Verdict:
        """One pass over the nodes in order; ``at`` is the deepest accepted node so far."""
        batch, num = draft.tokens.shape
        rows, none = jnp.arange(batch), jnp.zeros(batch, jnp.int32)

        def judge(node, walk):
            at, num_accepted, path, left = walk
            token = draft.tokens[:, node - 1]
            q = node_law(draft, node, p.shape[-1], p.dtype)
            tried = draft.valid[:, node - 1] & (draft.parent[:, node - 1] == at)
            # No division, and strict: a token with p = 0 never passes, not even for a coin of 0.
            passes = tried & (coins[:, node - 1] * q[rows, token] < left[rows, token])
            left = jnp.where(tried[:, None], residual(left, q), left)
            left = jnp.where(passes[:, None], p[:, node], left)
            path = jnp.where(passes[:, None], path.at[rows, num_accepted].set(node), path)
            at = jnp.where(passes, node, at)
            return at, num_accepted + passes.astype(jnp.int32), path, left

        walk = none, none, jnp.zeros((batch, num), jnp.int32), p[:, 0]
        if num:  # a body is traced even where it never runs
            walk = jax.lax.fori_loop(1, num + 1, judge, walk)
        _, num_accepted, path, left = walk
        return Verdict(num_accepted, path, left)
