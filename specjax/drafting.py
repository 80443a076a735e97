"""The first half of a round: what is drafted, for which rows, and how much of it is fed."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax import rng, tree
from specjax.cache import freeze
from specjax.draw import RowDraw
from specjax.program import Program
from specjax.types import RUNNING, Draft, State


@struct.dataclass
class Proposal:
    """A draft, and the Gumbel noise it was drawn with where the verifier wants the same again."""

    draft: Draft
    noise: Float[Array, "B E V"] | None

    def first(self, num: int) -> Draft:
        """The draft of the first ``num`` nodes alone: parents come before their children."""
        draft = self.draft
        if num == draft.tokens.shape[1]:
            return draft
        return dataclasses.replace(
            draft,
            tokens=draft.tokens[:, :num],
            parent=draft.parent[:, :num],
            valid=draft.valid[:, :num],
            probs=None if draft.probs is None else draft.probs[:, :num],
            hidden=None if draft.hidden is None else draft.hidden[:, : num + 1],
        )


def propose(program: Program, state: State) -> tuple[Proposal, State]:
    """Let the drafter draw; what is beyond a row's cap, or in a finished row, is not valid.

    Returns the proposal, and the state with what the drafter has written.
    """
    drafter, own = program.drafter, program.draft_processors
    active = state.finish == RUNNING
    caps = _caps(program, state)
    noise = None
    if program.verifier.coupled and drafter.samples:
        noise = position_noise(program, state, drafter.depth + 1)
    draw = RowDraw(
        active=active,
        cap=jnp.where(active, caps.max(1), 0),
        key=rng.stream(state.key, rng.DRAFT, state.context.length),
        sampling=state.sampling,
        states=state.processors if own is None else state.draft_processors,
        noise=noise,
        processors=program.processors if own is None else own,
        stopping=program.stopping,
        caps=None if program.policy is None else caps,
        vocab_size=program.target.vocab_size,
        num_tokens=program.num_tokens,
        tree_depth=drafter.tree_depth,
        records_law=not program.verifier.coupled,
    )
    draft, drafter_state, cache = drafter.propose(
        program.target, state.cache, state.drafter, state.context, draw, width=drafter.depth
    )
    cap = jnp.take_along_axis(caps, draft.kinds()[:, None], axis=1)
    within = (tree.depths(draft.parent)[:, 1:] <= cap) & active[:, None]
    valid = tree.reachable(draft.parent, draft.valid & within)
    drafter_state = freeze(active, drafter_state, state.drafter)
    state = dataclasses.replace(state, drafter=drafter_state, cache=cache)
    return Proposal(dataclasses.replace(draft, valid=valid), noise), state


def _caps(program: Program, state: State) -> Int[Array, "B C"]:
    """The longest draft of each row, one for each kind of draft that a policy tells apart."""
    caps = jnp.minimum(state.cap, program.drafter.depth)[:, None]
    if program.policy is None:
        return jnp.broadcast_to(caps, (len(caps), program.num_kinds))
    return jnp.minimum(caps, program.policy.caps(state.policy, state.finish == RUNNING))


def deepest(draft: Draft) -> Int[Array, " B"]:
    """The depth of each row's deepest valid node, 0 where there is none."""
    return jnp.where(draft.valid, tree.depths(draft.parent)[:, 1:], 0).max(1, initial=0)


def num_fed(draft: Draft) -> Int[Array, ""]:
    """How many of a draft's first nodes hold all that may be accepted in any row."""
    place = jnp.arange(1, draft.tokens.shape[1] + 1, dtype=jnp.int32)
    return jnp.where(draft.valid, place, 0).max(initial=0)


def position_noise(program: Program, state: State, num: int) -> Float[Array, "B E V"]:
    """Gumbel vectors of the next ``num`` positions, the same for draft and target."""
    batch, size = state.key.shape[0], program.target.vocab_size
    return jax.lax.cond(
        (state.sampling.temperature > 0).any(),
        lambda: rng.position_noise(state.key, state.context.length, num, size),
        lambda: jnp.zeros((batch, num, size), jnp.float32),
    )
