"""Coupled verification: draft and target sample with the same noise; keep what agrees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.types import Draft, Verdict


@struct.dataclass
class Coupled:
    """Walk down to the child equal to the target's own draw; where there is none, emit that draw.

    Proof: at absolute position t the target draws y_t = argmax(log p_t + g_t) with noise g_t that
    depends on row and position alone; the output is y_1, y_2, ... whatever was drafted, which is
    what plain sampling with the same key emits, token for token, for any drafter and any tree.
    Daliri, Musco, Suresh 2024 (arXiv 2408.07978), Gumbel-max coupling.
    """

    coupled: bool = struct.field(pytree_node=False, default=True)
    exact: bool = struct.field(pytree_node=False, default=True)
    branching: bool = struct.field(pytree_node=False, default=True)

    def accept(self, draft: Draft, p: Float[Array, "B M V"], coins: Int[Array, "B M"]) -> Verdict:
        """``coins[:, i]`` is the target's draw after node i, -1 where no token is allowed.

        Only the shape of ``p`` is read: the laws are not computed where nothing else wants them.
        """
        batch, num = draft.tokens.shape
        rows, none = jnp.arange(batch), jnp.zeros(batch, jnp.int32)

        def judge(node, walk):
            at, num_accepted, path = walk
            child = draft.valid[:, node - 1] & (draft.parent[:, node - 1] == at)
            passes = child & (draft.tokens[:, node - 1] == coins[rows, at])
            path = jnp.where(passes[:, None], path.at[rows, num_accepted].set(node), path)
            return jnp.where(passes, node, at), num_accepted + passes.astype(jnp.int32), path

        walk = none, none, jnp.zeros((batch, num), jnp.int32)
        if num:  # a body is traced even where it never runs
            walk = jax.lax.fori_loop(1, num + 1, judge, walk)
        at, num_accepted, path = walk
        last = jax.nn.one_hot(coins[rows, at], p.shape[-1], dtype=p.dtype)
        return Verdict(num_accepted, path, last)
