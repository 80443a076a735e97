"""A smaller model drafts a tree, level by level."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax import tree
from specjax.drafters.chain import at_least_one
from specjax.drafters.own_cache import OwnCache, Progress, newest_state, same_vocabulary
from specjax.once import once
from specjax.protocols import Draw
from specjax.types import Context, Draft, Drawn, Node


@struct.dataclass
class Level:
    """All nodes of one depth, the laws they were drawn from, and the model's cache by then."""

    tokens: Int[Array, "B F"]
    probs: Float[Array, "B F V"] | None
    node: Node
    cache: Any

    @classmethod
    def empty(cls, above: Node, num: int, cache: Any, draw: Draw, vocab_size: int) -> Level:
        """``num`` dead children of every node above."""
        batch, size = above.alive.shape
        of = jnp.broadcast_to(
            jnp.repeat(jnp.arange(size, dtype=jnp.int32), num), (batch, size * num)
        )
        node = above.take(of)
        return cls(
            tokens=jnp.zeros(of.shape, jnp.int32),
            probs=jnp.zeros((*of.shape, vocab_size), float) if draw.records_law else None,
            node=dataclasses.replace(node, alive=jnp.zeros_like(node.alive)),
            cache=cache,
        )

    @classmethod
    def of(cls, drawn: Drawn, cache: Any) -> Level:
        """The children of a frontier [B, F, C] as the next one, [B, F * C]."""
        batch, size, num = drawn.tokens.shape
        flat = jax.tree.map(
            lambda x: x.reshape(batch, size * num, *x.shape[3:]),
            (drawn.tokens, drawn.law, drawn.children),
        )
        tokens, law, node = flat
        return cls(tokens, None if law is None else law.astype(float), node, cache)


@struct.dataclass
class DraftTree(OwnCache):
    """Draft a tree from another model: its best guesses and their followers (Miao et al. 2024).

    Every node of level i has ``branching[i]`` children, drawn without replacement, and a level is
    fed in one pass; all ones make a chain. After a round the model's cache keeps the accepted
    path, so that it lags no more than a chain's. (The trees of SpecInfer, with siblings drawn as
    in Jeon et al. 2024, Recursive Speculative Decoding.)
    """

    model: Any
    branching: tuple[int, ...] = struct.field(pytree_node=False, default=(3, 2, 1))
    catch_up: int = struct.field(pytree_node=False, default=32)

    def __post_init__(self) -> None:
        at_least_one("catch_up", self.catch_up)
        tree.from_branching(self.branching)
        object.__setattr__(self, "branching", tuple(int(num) for num in self.branching))

    @property
    def depth(self) -> int:
        return len(self.branching)

    @property
    def num_nodes(self) -> int:
        return len(tree.from_branching(self.branching))

    @property
    def tree_depth(self) -> int:
        return self.depth

    def _model(self, target: Any) -> Any:
        return self.model

    def validate(self, target: Any) -> None:
        """Refuse a model that calls tokens by other ids than the target does.

        Raises:
            ValueError: the token maps differ, or (where one is unknown) the vocabulary sizes; or
                a node has more children than there are tokens.
        """
        same_vocabulary(self.model, target)
        if max(self.branching) > target.vocab_size:
            raise ValueError(
                f"branching: {max(self.branching)} children need as many tokens, and the target "
                f"has {target.vocab_size}; draw fewer"
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
        """Keep of what was fed the path that was committed, and make it contiguous."""
        ahead = tokens[:, 1 : self.depth + 1]
        kept = jnp.arange(ahead.shape[1], dtype=jnp.int32) < (count - 1)[:, None]
        # Only a row that drafted this round is synced up to its newest token.
        fed = (state.fed >= 0) & (state.synced == start + 1)[:, None]
        parent = tree.parents(tree.from_branching(self.branching), tokens.shape[0])
        path, num = tree.follow(state.fed, parent, fed, jnp.where(kept, ahead, -1))
        cache = state.cache
        if self.num_nodes > self.depth:
            cache = cache.compact(start, path)
        return dataclasses.replace(state, cache=cache, synced=state.synced + num)

    def _draft(
        self, target: Any, state: Progress, context: Context, draw: Draw, width: int
    ) -> tuple[Draft, Any]:
        """One pass over the last one or two committed tokens, then one pass a level.

        Node i lies in slot length - 1 + i of the model's cache, as it will in the target's.
        """
        model, root = self._model(target), draw.root()
        drafting = root.alive[:, 0]

        def grow(above: Node, num: int, cache: Any, feed: Callable) -> Level:
            def step(level):
                hidden, grown = feed(level.cache)
                return Level.of(draw(model.unembed(hidden), above, num), grown)

            empty = Level.empty(above, num, cache, draw, target.vocab_size)
            return once(above.alive.any(), step, empty)

        def newest(cache):
            return newest_state(model, cache, state.synced, context, drafting)

        levels = [grow(root, self.branching[0], state.cache, newest)]
        parent = tree.parents(tree.from_branching(self.branching[:width]), len(drafting))
        for num in self.branching[1:width]:
            feed = _level_pass(model, levels, parent, context)
            levels.append(grow(levels[-1].node, num, levels[-1].cache, feed))
        return _joined(levels, parent), levels[-1].cache


def _level_pass(
    model: Any, levels: list[Level], parent: Int[Array, "B N"], context: Context
) -> Callable[[Any], tuple[Float[Array, "B F D"], Any]]:
    """The pass over the last level: each of its nodes sees its own ancestors only."""
    level, num = levels[-1], levels[-1].tokens.shape[1]
    end = 1 + sum(x.tokens.shape[1] for x in levels)
    seen = tree.ancestors(parent)[:, end - num : end, :end]
    newest = context.length - 1
    positions = jnp.broadcast_to((newest + len(levels))[:, None], level.tokens.shape)

    def feed(cache):
        hidden, cache, _ = model.extend(
            level.tokens,
            newest + end - num,
            cache,
            count=jnp.where(level.node.alive.any(1), num, 0),
            positions=positions,
            mask=seen,
        )
        return hidden, cache

    return feed


def _joined(levels: list[Level], parent: Int[Array, "B N"]) -> Draft:
    """The draft whose nodes are those of all levels."""
    laws = [level.probs for level in levels if level.probs is not None]
    return Draft(
        tokens=jnp.concatenate([level.tokens for level in levels], axis=1),
        parent=parent,
        valid=jnp.concatenate([level.node.alive for level in levels], axis=1),
        probs=jnp.concatenate(laws, axis=1) if laws else None,
    )
