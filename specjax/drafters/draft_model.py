"""A smaller model drafts: any ``Target`` with the same vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import tree
from specjax.drafters.chain import Chain, at_least_one
from specjax.protocols import Draw
from specjax.types import Context, Draft, Node


@struct.dataclass
class Progress:
    """The draft model's cache, and how far it agrees with what was committed.

    Slots 0..synced-1 hold committed tokens. ``fed`` are the draft tokens fed beyond them in the
    last round, -1 where none was.
    """

    cache: Any
    synced: Int[Array, " B"]
    fed: Int[Array, "B K"]


@struct.dataclass
class Growing:
    """A chain half drawn: ``num`` tokens so far, ``node`` the frontier at its end."""

    num: Int[Array, ""]
    node: Node
    cache: Any
    tokens: Int[Array, "B K"]
    valid: Bool[Array, "B K"]
    probs: Float[Array, "B K V"] | None


@struct.dataclass
class DraftModel(Chain):
    """Draft by running another model token by token (Leviathan et al. 2023, Chen et al. 2023).

    Its cache may lag: by two after full acceptance, since the last proposal was never fed, and by
    more after rounds in which it did not draft. Rows longer than the model allows do not draft.
    """

    model: Any
    draft_length: int = struct.field(pytree_node=False, default=4)
    catch_up: int = struct.field(pytree_node=False, default=32)

    @property
    def samples(self) -> bool:
        return True

    def validate(self, target: Any) -> None:
        """Refuse a model that calls tokens by other ids than the target does.

        Raises:
            ValueError: the token maps differ, or (where one is unknown) the vocabulary sizes.
        """
        if not hasattr(self.model, "extend"):
            raise ValueError(
                f"model: must be a Target, got {type(self.model).__name__}; "
                "specjax.load(name) makes one"
            )
        ours, theirs = (getattr(m, "tokenizer", None) for m in (self.model, target))
        if ours is not None and theirs is not None:
            if ours.vocabulary != theirs.vocabulary:
                raise ValueError(
                    "drafter: its model has another token map than the target; "
                    "draft with a model of the same tokenizer"
                )
        elif self.model.vocab_size != target.vocab_size:
            raise ValueError(
                f"drafter: its model has {self.model.vocab_size} tokens, the target "
                f"{target.vocab_size}; draft with a model of the same vocabulary"
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("catch_up", self.catch_up)

    def init(self, target: Any, batch: int, capacity: int) -> Progress:
        """Allocate the draft model's own cache."""
        return Progress(
            # After a rejection the next pass starts up to depth + 1 slots further back.
            cache=self.model.init_cache(
                batch, capacity, scratch=max(self.catch_up, self.depth + 2)
            ),
            synced=jnp.zeros(batch, jnp.int32),
            fed=jnp.full((batch, self.depth), -1, jnp.int32),
        )

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

    def propose(
        self, target: Any, cache: Any, state: Progress, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Progress, Any]:
        """Catch up with the context, then draw ``width`` tokens one after the other."""
        if self.model.max_length is not None:
            draw = draw.narrow(context.length + width <= self.model.max_length)
        root = draw.root()
        drafting = root.alive[:, 0]
        state = self._catch_up(state, context, drafting)
        chain = self._grow(self._begin(state, target, root, draw, width), state, context, draw)
        ahead = jnp.arange(width, dtype=jnp.int32)
        fed = jnp.where(chain.valid & (ahead < width - 1), chain.tokens, -1)
        state = Progress(
            cache=chain.cache,
            synced=jnp.where(drafting, context.length, state.synced),
            fed=jnp.full_like(state.fed, -1).at[:, :width].set(fed),
        )
        parent = tree.chain_parents(fed.shape[0], width)
        return Draft(chain.tokens, parent, chain.valid, chain.probs), state, cache

    def _catch_up(self, state: Progress, context: Context, drafting) -> Progress:
        """Feed committed tokens in chunks while any drafting row lags by more than two."""

        def lag(synced):
            return jnp.where(drafting, context.length - synced, 0)

        def step(carry):
            cache, synced = carry
            count = jnp.clip(lag(synced) - 1, 0, self.catch_up)
            tokens = context.window(synced, self.catch_up)
            _, cache, _ = self.model.extend(tokens, synced, cache, count=count)
            return cache, synced + count

        behind = lambda carry: (lag(carry[1]) > 2).any()  # noqa: E731
        cache, synced = jax.lax.while_loop(behind, step, (state.cache, state.synced))
        return dataclasses.replace(state, cache=cache, synced=synced)

    def _begin(self, state: Progress, target: Any, root: Node, draw: Draw, width: int) -> Growing:
        batch = root.alive.shape[0]
        probs = None
        if draw.records_law:
            probs = jnp.zeros((batch, width, target.vocab_size), float)
        return Growing(
            num=jnp.zeros((), jnp.int32),
            node=root,
            cache=state.cache,
            tokens=jnp.zeros((batch, width), jnp.int32),
            valid=jnp.zeros((batch, width), bool),
            probs=probs,
        )

    def _grow(self, chain: Growing, state: Progress, context: Context, draw: Draw) -> Growing:
        """One pass over the last one or two committed tokens, then one pass a token.

        Both are loops, so that neither runs when no row drafts.
        """
        width = chain.tokens.shape[1]

        def first(chain):
            count = jnp.where(chain.node.alive[:, 0], context.length - state.synced, 0)
            tokens = context.window(state.synced, 2)
            hidden, cache, _ = self.model.extend(tokens, state.synced, chain.cache, count=count)
            at = jnp.maximum(count - 1, 0)
            hidden = jnp.take_along_axis(hidden, at[:, None, None], axis=1)
            return self._append(dataclasses.replace(chain, cache=cache), hidden, draw)

        def step(chain):
            newest = jax.lax.dynamic_slice_in_dim(chain.tokens, chain.num - 1, 1, axis=1)
            count = chain.node.alive[:, 0].astype(jnp.int32)
            at = context.length + chain.num - 1
            hidden, cache, _ = self.model.extend(newest, at, chain.cache, count=count)
            return self._append(dataclasses.replace(chain, cache=cache), hidden, draw)

        def opens(chain):
            return (chain.num == 0) & chain.node.alive.any()

        def goes_on(chain):
            return (chain.num > 0) & (chain.num < width) & chain.node.alive.any()

        return jax.lax.while_loop(goes_on, step, jax.lax.while_loop(opens, first, chain))

    def _append(self, chain: Growing, hidden: Float[Array, "B 1 D"], draw: Draw) -> Growing:
        drawn = draw(self.model.unembed(hidden), chain.node)

        def put(old, new):
            return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), chain.num, 1)

        node = jax.tree.map(lambda x: x[:, :, 0], drawn.children)
        return dataclasses.replace(
            chain,
            num=chain.num + 1,
            node=node,
            tokens=put(chain.tokens, drawn.tokens[:, 0]),
            valid=put(chain.valid, node.alive),
            probs=None if drawn.law is None else put(chain.probs, drawn.law[:, 0]),
        )
