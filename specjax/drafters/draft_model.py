"""A smaller model drafts: any ``Target`` with the same vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax import tree
from specjax.drafters.growing import Growing
from specjax.drafters.own_cache import OwnCache, Progress, newest_state, same_vocabulary
from specjax.once import once
from specjax.protocols import Draw
from specjax.types import Context, Draft


class ModelChain(OwnCache):
    """Draw a chain from a model, token by token; ``_model`` says from which."""

    def observe(
        self,
        target: Any,
        state: Progress,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Progress:
        """Keep the cache up to where what was fed is what was committed."""
        num = min(self.depth, tokens.shape[1] - 1)
        kept = jnp.arange(num, dtype=jnp.int32) < (count - 1)[:, None]
        same = (tokens[:, 1 : num + 1] == state.fed[:, :num]) & kept
        common = jnp.cumprod(same, axis=1, dtype=jnp.int32).sum(1)
        # Only a row that drafted this round is synced up to its newest token.
        common = jnp.where(state.synced == start + 1, common, 0)
        return dataclasses.replace(state, synced=state.synced + common)

    def _draft(
        self, target: Any, state: Progress, context: Context, draw: Draw, width: int
    ) -> tuple[Draft, Any]:
        """One pass over the last one or two committed tokens, then one pass a token.

        Both are loops, so that neither runs when no row drafts.
        """
        model = self._model(target)

        def first(chain):
            drafting = chain.node.alive[:, 0]
            hidden, cache = newest_state(model, chain.cache, state.synced, context, drafting)
            return dataclasses.replace(chain, cache=cache).append(model.unembed(hidden), draw)

        def step(chain):
            newest = jax.lax.dynamic_slice_in_dim(chain.tokens, chain.num - 1, 1, axis=1)
            count = chain.node.alive[:, 0].astype(jnp.int32)
            at = context.length + chain.num - 1
            hidden, cache, _ = model.extend(newest, at, chain.cache, count=count)
            return dataclasses.replace(chain, cache=cache).append(model.unembed(hidden), draw)

        def goes_on(chain):
            return (chain.num > 0) & (chain.num < width) & chain.node.alive.any()

        chain = Growing.begin(draw, state.cache, width, target.vocab_size)
        chain = once(chain.node.alive.any(), first, chain)
        chain = jax.lax.while_loop(goes_on, step, chain)
        parent = tree.chain_parents(chain.tokens.shape[0], width)
        return Draft(chain.tokens, parent, chain.valid, chain.probs), chain.cache


@struct.dataclass
class DraftModel(ModelChain):
    """Draft by running another model token by token (Leviathan et al. 2023, Chen et al. 2023).

    Its cache lags, and catches up in passes over ``catch_up`` tokens. Rows longer than the model
    allows do not draft.
    """

    model: Any
    draft_length: int = struct.field(pytree_node=False, default=4)
    catch_up: int = struct.field(pytree_node=False, default=32)

    def _model(self, target: Any) -> Any:
        return self.model

    def validate(self, target: Any) -> None:
        """Refuse a model that calls tokens by other ids than the target does.

        Raises:
            ValueError: the token maps differ, or (where one is unknown) the vocabulary sizes.
        """
        same_vocabulary(self.model, target)
