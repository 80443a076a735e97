"""The end of a round: what is kept, where each row stands, and who is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specjax import sampling, tree
from specjax.cache import write_slots
from specjax.program import Program
from specjax.protocols import Cache, Feedback
from specjax.types import (
    DEAD_END,
    OUT_OF_BUDGET,
    RUNNING,
    STOPPED,
    Context,
    Draft,
    State,
    Stats,
    Verdict,
)


def clip(state: State, emitted: Int[Array, "B E"], num, num_accepted):
    """Cut at the first stop token and at the budget, and say how each row stands."""
    active = state.finish == RUNNING
    room = state.limit - state.context.length
    offered = jnp.minimum(num, room)
    place = jnp.arange(emitted.shape[1], dtype=jnp.int32)
    stops = (emitted[..., None] == state.sampling.stop_ids[:, None]).any(-1) & (
        place < offered[:, None]
    )
    stopped = stops.any(-1)
    count = jnp.where(stopped, stops.argmax(-1).astype(jnp.int32) + 1, offered)
    finish = jnp.where(num == num_accepted, DEAD_END, RUNNING)
    finish = jnp.where(count == room, OUT_OF_BUDGET, finish)
    finish = jnp.where(stopped, STOPPED, finish)
    return jnp.where(active, count, 0), jnp.where(active, finish, state.finish).astype(jnp.int8)


def commit(
    program: Program, state: State, draft: Draft, verdict: Verdict, emitted, count, features, logits
) -> State:
    """Write the kept tokens, make their slots contiguous, and show them to whoever keeps state."""
    context, first = state.context, state.context.length - 1
    path = verdict.path[:, : program.drafter.depth]
    place = jnp.arange(path.shape[1], dtype=jnp.int32)
    path = jnp.where(place < verdict.num_accepted[:, None], path, place + 1)
    cache = state.cache if program.is_chain else state.cache.compact(first, path)
    seen = jnp.concatenate([context.newest(), tree.path_tokens(draft.tokens, path)], axis=1)
    nodes = jnp.pad(path, ((0, 0), (1, 0)))
    features = tuple(jax.vmap(lambda f, at: f[at])(f, nodes) for f in features)
    drafter_state = program.drafter.observe(
        program.target, state.drafter, seen, first, count, features
    )
    if isinstance(program.drafter, Feedback):
        top = logits.argmax(-1).astype(jnp.int32)
        drafter_state = program.drafter.feedback(drafter_state, draft, top)
    active = state.finish == RUNNING
    drafted = jnp.arange(emitted.shape[1], dtype=jnp.int32) < verdict.num_accepted[:, None]
    return dataclasses.replace(
        state,
        context=Context(
            write_slots(context.tokens, emitted, context.length, count), context.length + count
        ),
        cache=cache,
        drafter=freeze(active, drafter_state, state.drafter),
        processors=sampling.advance_processors(
            program.processors, state.processors, emitted, count
        ),
        drafted=write_slots(state.drafted, drafted, context.length, count),
    )


def freeze(active: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Keep the old small state of finished rows. Caches pass: a where over one would copy it."""

    def choose(fresh, kept):
        if isinstance(fresh, Cache):
            return fresh
        return jnp.where(active.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, kept)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, Cache))


def tally(stats: Stats, draft: Draft, num, count, room) -> Stats:
    """Count one round. It is judged only as far as the budget could show, or a stop has shown.

    To drop what the budget cut, and count what was rejected before it, would bias every rate.
    """
    active = count > 0
    kept = jnp.maximum(count - 1, 0)
    deepest = jnp.where(draft.valid, tree.depths(draft.parent)[:, 1:], 0).max(1, initial=0)
    judged = jnp.clip(deepest, 0, jnp.maximum(room - 1, 0))
    judged = jnp.where(count < jnp.minimum(num, room), kept, judged)
    rows = jnp.arange(count.shape[0])
    return Stats(
        rounds=stats.rounds + active.astype(jnp.int32),
        outcomes=stats.outcomes.at[rows, judged, kept].add(active.astype(jnp.int32)),
        nodes=stats.nodes + draft.valid.sum(1, dtype=jnp.int32),
        clipped=stats.clipped + jnp.where(active, num - count, 0),
    )
