"""Rows as a whole: several samples of each prompt, and going on where a call ended."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from specjax import loop, rng
from specjax.program import Program
from specjax.types import EMPTY, OUT_OF_BUDGET, RUNNING, State


def samples(state: State, num: int) -> State:
    """Repeat every row ``num`` times, each with a key of its own; the first keeps the row's.

    After prefill this samples a prompt several times for one prefill. Samples of a row stand
    together.
    """
    if num == 1:
        return state
    batch = state.key.shape[0]

    def repeat(x):  # an index would gather caches that are cut between devices
        each = jnp.broadcast_to(x[:, None], (batch, num, *x.shape[1:]))
        return each.reshape(batch * num, *x.shape[1:])

    repeated = jax.tree.map(repeat, state)
    index = jnp.tile(jnp.arange(num, dtype=jnp.uint32), batch)
    fresh = rng.fold(rng.fold(repeated.key, rng.SAMPLE), index)
    return dataclasses.replace(repeated, key=jnp.where(index == 0, repeated.key, fresh))


def resume(
    program: Program, state: State, limit: Int[Array, " B"], capacity: int, *, chunk: int
) -> State:
    """Let rows go on that ended at their budget, or not at all, up to a new total length.

    ``capacity`` is the L to hold the longest. ``chunk`` is that of the state's ``start`` (rings
    depend on it) and of prefill, for rows that had no budget before. Under coupled verification
    and at temperature 0 the tokens are those of a run that never stopped; under ratio rules their
    law is.
    """
    num = None if state.record is None else state.record.top.shape[-1]
    fresh = loop.start(
        program,
        jnp.zeros((state.key.shape[0], capacity), jnp.int32),
        state.context.length,
        sampling_values=state.sampling,
        key=state.key,
        limit=limit,
        num_top=num,
        chunk=chunk,
    )
    state = jax.tree.map(_enlarge, fresh, state)
    open_ended = (state.finish == RUNNING) | (state.finish == OUT_OF_BUDGET)
    going = open_ended & (state.context.length < limit)
    finish = jnp.where(going, RUNNING, jnp.where(open_ended, OUT_OF_BUDGET, state.finish))
    # Nobody has read the prompt of a row that had no budget.
    unread = going & (state.finish == OUT_OF_BUDGET) & (state.stats.rounds == 0)
    reading = jnp.where(unread, RUNNING, EMPTY).astype(jnp.int8)
    state = loop.prefill(program, dataclasses.replace(state, finish=reading), chunk=chunk)
    return dataclasses.replace(state, limit=limit, finish=finish.astype(jnp.int8))


def _enlarge(larger: Shaped[Array, " ..."], array: Shaped[Array, " ..."]) -> Shaped[Array, " ..."]:
    """Lay an array into the corner of one that is at least as large along every axis."""
    if larger.shape == array.shape:
        return array
    return larger.at[tuple(slice(0, n) for n in array.shape)].set(array)
