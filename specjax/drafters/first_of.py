"""Several drafters in one: the first that has something to say, for each row and round."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import tree
from specjax.cache import freeze
from specjax.once import once
from specjax.protocols import Draw, Feedback
from specjax.types import Context, Draft


@struct.dataclass
class Turns:
    """The states of all drafters, and whose draft each row took in this round."""

    inner: tuple
    chosen: Int[Array, " B"]


@struct.dataclass
class FirstOf:
    """Ask drafters in turn; a row takes the first draft that is not empty, else the last one's.

    What is cheap comes first: a model asked after an n-gram does no work where no row needs it. All
    stand under one verifier. Build it with ``first_of``.
    """

    drafters: tuple

    @property
    def depth(self) -> int:
        return max(d.depth for d in self.drafters)

    @property
    def num_nodes(self) -> int:
        num = max(d.num_nodes for d in self.drafters)
        trees = any(d.num_nodes > d.depth for d in self.drafters)
        # As many nodes as depth would say that all are chains.
        return max(num, self.depth + 1) if trees else num

    @property
    def tree_depth(self) -> int:
        return max(d.tree_depth for d in self.drafters)

    @property
    def wants(self) -> tuple[int, ...]:
        return tuple(sorted({layer for d in self.drafters for layer in d.wants}))

    @property
    def samples(self) -> bool:
        return any(d.samples for d in self.drafters)

    @property
    def rows_independent(self) -> bool:
        return all(d.rows_independent for d in self.drafters)

    @property
    def num_kinds(self) -> int:
        return sum(_num_kinds(d) for d in self.drafters)

    def validate(self, target: Any) -> None:
        """Go where all go.

        Raises:
            ValueError: one of them does not draft for this target, or drafts nothing.
        """
        for drafter in self.drafters:
            if drafter.depth < 1:
                raise ValueError(
                    f"drafters: {type(drafter).__name__} drafts no token; leave it out"
                )
            drafter.validate(target)

    def init(self, target: Any, batch: int, capacity: int) -> Turns:
        """Allocate the state of each."""
        inner = tuple(d.init(target, batch, capacity) for d in self.drafters)
        return Turns(inner, jnp.zeros(batch, jnp.int32))

    def observe(
        self,
        target: Any,
        state: Turns,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Turns:
        """Show everything committed to each, with the layers that it wants."""
        layer = dict(zip(self.wants, features, strict=True))
        inner = tuple(
            d.observe(target, s, tokens, start, count, tuple(layer[i] for i in d.wants))
            for d, s in zip(self.drafters, state.inner, strict=True)
        )
        return dataclasses.replace(state, inner=inner)

    def propose(
        self, target: Any, cache: Any, state: Turns, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Turns, Any]:
        """Ask in turn those rows that have no draft yet."""
        batch = context.tokens.shape[0]
        spoken, chosen = jnp.zeros(batch, bool), jnp.zeros(batch, jnp.int32)
        merged, inner, states, first = None, [], [], 0
        for index, drafter in enumerate(self.drafters):
            num = _num_kinds(drafter)
            asked = draw.narrow(~spoken).for_kinds(first, num)
            draft, own, cache = drafter.propose(
                target, cache, state.inner[index], context, asked, width=drafter.depth
            )
            inner.append(own)
            if draft.hidden is not None:
                states.append((index, draft.hidden, draft.remaining))
            draft = self._alike(draft, first)
            merged = draft if merged is None else _choose(spoken, merged, draft)
            chosen = jnp.where(spoken, chosen, index)
            spoken, first = spoken | draft.valid.any(1), first + num
        assert merged is not None
        turns = Turns(tuple(inner), chosen)
        if not states:
            return merged, turns, cache
        return self._with_states(merged, turns, states, target, cache, context)

    def _alike(self, draft: Draft, first_kind: int) -> Draft:
        """A draft of as many nodes as the largest has, and of a kind of its own."""
        num = draft.tokens.shape[1]
        more = ((0, 0), (0, self.num_nodes - num))  # hanging from the root, never valid
        probs = draft.probs
        if probs is not None:
            probs = jnp.pad(probs, (*more, (0, 0)))
        return Draft(
            tokens=jnp.pad(draft.tokens, more),
            parent=jnp.pad(draft.parent, more),
            valid=jnp.pad(draft.valid, more),
            probs=probs,
            kind=first_kind + draft.kinds(),
        )

    def _with_states(self, draft: Draft, turns: Turns, states: list, target, cache, context):
        """Hand on states of the first layers, run here for rows that took another's tokens."""
        if len(states) > 1:
            raise ValueError(
                "drafters: two of them hand on states of the target's first layers; keep one"
            )
        index, hidden, remaining = states[0]
        more = draft.tokens.shape[1] + 1 - hidden.shape[1]
        hidden = jnp.pad(hidden, ((0, 0), (0, more), (0, 0)))
        others = turns.chosen != index
        tokens = jnp.concatenate([context.newest(), draft.tokens], axis=1)
        first = context.length - 1
        shape = tree.fed_from(draft.parent, first) if self.num_nodes > self.depth else {}

        def run(carry):
            count = jnp.where(others, tokens.shape[1], 0)
            layers = range(min(remaining))
            found, cache, _ = target.extend(
                tokens, first, carry[1], count=count, layers=layers, **shape
            )
            return jnp.where(others[:, None, None], found, carry[0]), cache

        hidden, cache = once(others.any(), run, (hidden, cache))
        return dataclasses.replace(draft, hidden=hidden, remaining=remaining), turns, cache


@struct.dataclass
class Listening(FirstOf):
    """``FirstOf`` drafters of which one wants to hear the target's argmax at every node."""

    def feedback(self, state: Turns, draft: Draft, top: Int[Array, "B M"]) -> Turns:
        """Pass on what the target said, but not about drafts that were another's."""
        inner = []
        for index, (drafter, own) in enumerate(zip(self.drafters, state.inner, strict=True)):
            num = drafter.num_nodes
            if isinstance(drafter, Feedback):
                theirs = Draft(draft.tokens[:, :num], draft.parent[:, :num], draft.valid[:, :num])
                told = drafter.feedback(own, theirs, top[:, : num + 1])
                own = freeze(state.chosen == index, told, own)
            inner.append(own)
        return dataclasses.replace(state, inner=tuple(inner))


def first_of(*drafters: Any) -> FirstOf:
    """Several drafters in one: each row and round takes the first draft that is not empty.

    >>> from specjax.drafters import NGram, Plain
    >>> first_of(NGram(4), NGram(6, min_ngram=1)).depth
    6

    Raises:
        ValueError: there are none, or one of them is no drafter.
    """
    if not drafters:
        raise ValueError("drafters: give at least one, such as NGram(4)")
    for drafter in drafters:
        if isinstance(drafter, type) or not hasattr(drafter, "propose"):
            raise ValueError(f"drafters: must be Drafters such as NGram(4), got {drafter!r:.60}")
    heard = any(isinstance(drafter, Feedback) for drafter in drafters)
    return (Listening if heard else FirstOf)(drafters)


def _num_kinds(drafter: Any) -> int:
    return getattr(drafter, "num_kinds", 1)


def _choose(spoken: Bool[Array, " B"], mine: Draft, other: Draft) -> Draft:
    """Row by row: what is there already where that says something, else the other."""
    if (mine.probs is None) != (other.probs is None):
        mine, other = _with_law(mine, other), _with_law(other, mine)

    def pick(a, b):
        return jnp.where(spoken.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, mine, other)


def _with_law(draft: Draft, like: Draft) -> Draft:
    """A draft of point masses as one that says so in its law."""
    if draft.probs is not None or like.probs is None:
        return draft
    law = jax.nn.one_hot(draft.tokens, like.probs.shape[-1], dtype=like.probs.dtype)
    return dataclasses.replace(draft, probs=law)
