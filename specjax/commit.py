"""The end of a round: what is kept, where each row stands, and who is told."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax import sampling, tree
from specjax.cache import freeze, write_slots
from specjax.drafting import deepest
from specjax.program import Program
from specjax.protocols import Feedback
from specjax.stops import state_after
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


@struct.dataclass
class Kept:
    """What a round decided: of ``emitted`` the first ``count`` tokens stay."""

    draft: Draft
    verdict: Verdict
    emitted: Int[Array, "B E"]
    count: Int[Array, " B"]


def clip(program: Program, state: State, emitted: Int[Array, "B E"], num, num_accepted):
    """Cut where a stop comes first and at the budget, and say how each row stands."""
    active = state.finish == RUNNING
    room = state.limit - state.context.length
    offered = jnp.minimum(num, room)
    place = jnp.arange(emitted.shape[1], dtype=jnp.int32)
    stops = _stops(program, state, emitted) & (place < offered[:, None])
    stopped = stops.any(-1)
    count = jnp.where(stopped, stops.argmax(-1).astype(jnp.int32) + 1, offered)
    finish = jnp.where(num == num_accepted, DEAD_END, RUNNING)
    finish = jnp.where(count == room, OUT_OF_BUDGET, finish)
    finish = jnp.where(stopped, STOPPED, finish)
    return jnp.where(active, count, 0), jnp.where(active, finish, state.finish).astype(jnp.int8)


def _stops(program: Program, state: State, emitted: Int[Array, "B E"]) -> Bool[Array, "B E"]:
    """Which tokens end their row: a stop id, or the last one of a stop string."""
    values, matching = state.sampling, state.matching
    ends = (emitted[..., None] == values.stop_ids[:, None]).any(-1)
    if program.stops is None or matching is None or values.stop_strings is None:
        return ends
    found, _ = program.stops.follow(matching, emitted)
    found = (found & values.stop_strings[:, None]) != 0
    if values.min_new_tokens is not None:
        after = jnp.arange(1, emitted.shape[1] + 1, dtype=jnp.int32)
        num_new = (state.context.length - state.begin)[:, None] + after
        found &= num_new >= values.min_new_tokens[:, None]
    return ends | found


def commit(program: Program, state: State, kept: Kept, features: tuple, logits, processed) -> State:
    """Write the kept tokens, make their slots contiguous, and show them to whoever keeps state."""
    context, first = state.context, state.context.length - 1
    draft, emitted, count = kept.draft, kept.emitted, kept.count
    path = kept.verdict.path[:, : program.drafter.depth]
    place = jnp.arange(path.shape[1], dtype=jnp.int32)
    path = jnp.where(place < kept.verdict.num_accepted[:, None], path, place + 1)
    nodes = jnp.pad(path, ((0, 0), (1, 0)))
    seen = jnp.concatenate([context.newest(), tree.path_tokens(draft.tokens, path)], axis=1)
    drafter_state = program.drafter.observe(
        program.target,
        state.drafter,
        seen,
        first,
        count,
        tuple(tree.at_nodes(f, nodes) for f in features),
    )
    if isinstance(program.drafter, Feedback):
        top = logits.argmax(-1).astype(jnp.int32)
        drafter_state = program.drafter.feedback(drafter_state, draft, top)
    state = _remember(program, state, kept, nodes, logits, processed)
    return dataclasses.replace(
        state,
        context=Context(
            write_slots(context.tokens, emitted, context.length, count), context.length + count
        ),
        cache=state.cache if is_chain(program, draft) else state.cache.compact(first, path),
        drafter=freeze(state.finish == RUNNING, drafter_state, state.drafter),
    )


def is_chain(program: Program, draft: Draft) -> bool:
    """Whether a chain is fed: it needs no mask, and what is accepted lies where it is kept."""
    return program.is_chain or draft.tokens.shape[1] <= 1


def _remember(program: Program, state: State, kept: Kept, nodes, logits, processed) -> State:
    """Bring what belongs to each kept token up to date: processors, marks, records."""
    emitted, count, length = kept.emitted, kept.count, state.context.length
    place = jnp.arange(emitted.shape[1], dtype=jnp.int32)
    drafted = place < kept.verdict.num_accepted[:, None]
    advance = partial(sampling.advance_processors, tokens=emitted, count=count)
    changes: dict[str, Any] = {}
    if program.stops is not None and state.matching is not None:
        changes["matching"] = state_after(program.stops, state.matching, emitted, count)
    if state.record is not None:
        changes["record"] = state.record.write(logits, processed, nodes, emitted, length, count)
    if program.policy is not None:
        told = program.policy.update(
            state.policy, kept.draft.kinds(), deepest(kept.draft), kept.verdict.num_accepted
        )
        changes["policy"] = freeze(state.finish == RUNNING, told, state.policy)
    return dataclasses.replace(
        state,
        processors=advance(program.processors, state.processors),
        draft_processors=advance(program.draft_processors or (), state.draft_processors),
        drafted=write_slots(state.drafted, drafted, length, count),
        **changes,
    )


def tally(stats: Stats, draft: Draft, num, count, room, experts=None) -> Stats:
    """Count one round. It is judged only as far as the budget could show, or a stop has shown.

    ``experts`` is how many each layer of the target read for each row.

    To drop what the budget cut, and count what was rejected before it, would bias every rate.
    """
    active = count > 0
    kept = jnp.maximum(count - 1, 0)
    judged = jnp.clip(deepest(draft), 0, jnp.maximum(room - 1, 0))
    judged = jnp.where(count < jnp.minimum(num, room), kept, judged)
    rows = jnp.arange(count.shape[0])
    if stats.experts is not None and experts is not None:
        experts = stats.experts + jnp.where(active, experts.sum(1), 0)
    return Stats(
        rounds=stats.rounds + active.astype(jnp.int32),
        outcomes=stats.outcomes.at[rows, judged, kept].add(active.astype(jnp.int32)),
        nodes=stats.nodes + draft.valid.sum(1, dtype=jnp.int32),
        clipped=stats.clipped + jnp.where(active, num - count, 0),
        experts=experts,
    )
