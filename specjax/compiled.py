"""The programs a ``Decoder`` dispatches: jitted once, shared by all decoders of the same shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax import loop, rng, rows
from specjax.program import Program
from specjax.record import Record
from specjax.request import Request
from specjax.score import score_tokens
from specjax.types import State, Stats


@struct.dataclass
class Output:
    """What comes back: no cache, so its memory is free when the program ends."""

    tokens: Int[Array, "B L"]
    begin: Int[Array, " B"]
    length: Int[Array, " B"]
    finish: Int[Array, " B"]
    drafted: Bool[Array, "B L"]
    stats: Stats
    record: Record | None


def output_of(program: Program, state: State) -> Output:
    """The part of a state that the host wants, whole on every host."""
    output = Output(
        tokens=state.context.tokens,
        begin=state.begin,
        length=state.context.length,
        finish=state.finish,
        drafted=state.drafted,
        stats=state.stats,
        record=state.record,
    )
    return output if program.layout is None else program.layout.replicate(output)


def _begin(program: Program, request: Request, chunk: int) -> State:
    state = loop.start(
        program,
        request.tokens,
        request.length,
        sampling_values=request.sampling,
        key=rng.row_keys(request.seeds),
        limit=request.limit,
        cap=request.cap,
        num_top=request.num_top,
        chunk=chunk,
    )
    state = rows.samples(loop.prefill(program, state, chunk=chunk), request.num_samples)
    return program.laid_out(state)


@partial(jax.jit, static_argnames=("chunk", "keep_state"))
def generate(
    program: Program, request: Request, *, chunk: int, keep_state: bool = False
) -> tuple[Output, State | None]:
    """Allocate, prefill and decode to the end: one dispatch."""
    state = loop.complete(program, _begin(program, request, chunk))
    return output_of(program, state), state if keep_state else None


@partial(jax.jit, static_argnames=("capacity", "chunk"))
def resume(
    program: Program, state: State, limit: Int[Array, " B"], *, capacity: int, chunk: int
) -> tuple[Output, State]:
    """Decode on from where a call ended: one dispatch. The state given stays as it is."""
    state = loop.complete(program, rows.resume(program, state, limit, capacity, chunk=chunk))
    return output_of(program, state), state


@partial(jax.jit, static_argnames="chunk")
def begin(program: Program, request: Request, *, chunk: int) -> State:
    """Allocate and prefill."""
    return _begin(program, request, chunk)


@partial(jax.jit, donate_argnames="state")
def advance(program: Program, state: State, rounds: Int[Array, ""]) -> tuple[State, Output]:
    """Run some rounds; the state's memory is used again for the one returned."""
    state = program.laid_out(loop.advance(program, state, rounds))
    return state, jax.tree.map(jnp.copy, output_of(program, state))


@partial(jax.jit, donate_argnames="state")
def watched_round(program: Program, state: State) -> tuple[State, loop.Round]:
    """Run one round and say what it did."""
    return loop.round(program, state)


@partial(jax.jit, static_argnames="chunk")
def score(target: Any, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, chunk: int):
    """Log-probability of every token after the first."""
    scores = score_tokens(target, tokens, length, chunk=chunk)
    layout = getattr(target, "layout", None)
    return scores if layout is None else layout.replicate(scores)
