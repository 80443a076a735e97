"""Draft what a grammar leaves no choice about, and let another drafter do the rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import tree
from specjax.cache import freeze
from specjax.constraint import Constraint
from specjax.protocols import Draw, Feedback
from specjax.types import Context, Draft


@struct.dataclass
class Turns:
    """The other drafter's state, and in which rows the grammar drafted this round."""

    inner: Any
    forced: Bool[Array, " B"]


@struct.dataclass
class Forced:
    """Draft the run of tokens that the grammar forces, where it forces any (jump-forward decoding).

    A token that is the only one allowed is always accepted. Where one text must follow but may be
    spelled in several ways, its longest token is drafted: a guess, judged like every other. All
    other rows draft with ``drafter``, which does no work when every row is forced. Without a
    ``Constraint`` among the processors it is ``drafter`` alone.
    """

    drafter: Any

    @property
    def depth(self) -> int:
        return self.drafter.depth

    @property
    def num_nodes(self) -> int:
        return self.drafter.num_nodes

    @property
    def tree_depth(self) -> int:
        return self.drafter.tree_depth

    @property
    def wants(self) -> tuple[int, ...]:
        return self.drafter.wants

    @property
    def samples(self) -> bool:
        return self.drafter.samples

    @property
    def rows_independent(self) -> bool:
        return self.drafter.rows_independent

    def validate(self, target: Any) -> None:
        """Go wherever the other drafter goes.

        Raises:
            ValueError: the other drafter does not draft for this target, or drafts nothing.
        """
        if self.depth < 1:
            raise ValueError(
                "drafter: Forced fills the drafts of another, and this one drafts no token; "
                "wrap NGram(4), say"
            )
        self.drafter.validate(target)

    def init(self, target: Any, batch: int, capacity: int) -> Turns:
        """Allocate the other drafter's state."""
        return Turns(self.drafter.init(target, batch, capacity), jnp.zeros(batch, bool))

    def observe(
        self,
        target: Any,
        state: Turns,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Turns:
        """Show everything committed to the other drafter."""
        inner = self.drafter.observe(target, state.inner, tokens, start, count, features)
        return dataclasses.replace(state, inner=inner)

    def feedback(self, state: Turns, draft: Draft, top: Int[Array, "B M"]) -> Turns:
        """Pass on what the target said, but not about drafts that were not the other's."""
        if not isinstance(self.drafter, Feedback):
            return state
        told = self.drafter.feedback(state.inner, draft, top)
        return dataclasses.replace(state, inner=freeze(~state.forced, told, state.inner))

    def propose(
        self, target: Any, cache: Any, state: Turns, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Turns, Any]:
        """Draft each row's run where it has one, and let the other drafter draft elsewhere.

        Raises:
            ValueError: the other drafter hands on hidden states, which are not those of the run.
        """
        run = _runs(draw, width)
        forced = jnp.zeros_like(state.forced) if run is None else run[:, 0] >= 0
        draft, inner, cache = self.drafter.propose(
            target, cache, state.inner, context, draw.narrow(~forced), width=width
        )
        if run is not None:
            draft = _instead(draft, forced, run)
        return draft, Turns(inner, forced), cache


def _runs(draw: Draw, width: int) -> Int[Array, "B T"] | None:
    """What the grammar forces in each row, -1 from where it forces nothing or the cap is reached.

    None where no processor is a grammar.
    """
    found = draw.find(Constraint)
    if found is None:
        return None
    constraint, states = found
    ahead = jnp.arange(width, dtype=jnp.int32)
    within = draw.active[:, None] & (ahead < draw.cap[:, None])
    return jnp.where(within, constraint.run(states, width), -1)


def _instead(draft: Draft, forced: Bool[Array, " B"], run: Int[Array, "B T"]) -> Draft:
    """Put the runs in place of the drafts of forced rows, as chains over their first nodes."""
    if draft.hidden is not None:
        raise ValueError(
            "drafter: Forced cannot wrap a drafter that hands on hidden states, "
            "since they belong to its own tokens"
        )
    batch, num = draft.tokens.shape
    rest = num - run.shape[1]
    run = jnp.pad(run, ((0, 0), (0, rest)), constant_values=-1)
    chain = tree.chain_parents(batch, num - rest)
    chain = jnp.pad(chain, ((0, 0), (0, rest)))  # the nodes left over hang from the root
    here = forced[:, None]
    probs = draft.probs
    if probs is not None:
        certain = jax.nn.one_hot(run, probs.shape[-1], dtype=probs.dtype)
        probs = jnp.where(here[..., None], certain, probs)
    return dataclasses.replace(
        draft,
        tokens=jnp.where(here, jnp.maximum(run, 0), draft.tokens),
        parent=jnp.where(here, chain, draft.parent),
        valid=jnp.where(here, run >= 0, draft.valid),
        probs=probs,
    )
