"""The programs a ``Decoder`` dispatches: jitted once, shared by all decoders of the same shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax import loop, rng
from specjax.program import Program
from specjax.request import Request
from specjax.score import score_tokens
from specjax.types import State, Stats


@struct.dataclass
class Output:
    """What comes back: no cache, so its memory is free when the program ends."""

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]
    finish: Int[Array, " B"]
    drafted: Bool[Array, "B L"]
    stats: Stats


def output_of(state: State) -> Output:
    """The part of a state that the host wants."""
    context = state.context
    return Output(context.tokens, context.length, state.finish, state.drafted, state.stats)


def _start(program: Program, request: Request) -> State:
    return loop.start(
        program,
        request.tokens,
        request.length,
        sampling_values=request.sampling,
        key=rng.row_keys(request.seeds),
        limit=request.limit,
    )


@partial(jax.jit, static_argnames="chunk")
def generate(program: Program, request: Request, *, chunk: int) -> Output:
    """Allocate, prefill and decode to the end: one dispatch."""
    return output_of(loop.generate(program, _start(program, request), chunk=chunk))


@partial(jax.jit, static_argnames="chunk")
def begin(program: Program, request: Request, *, chunk: int) -> State:
    """Allocate and prefill."""
    return loop.prefill(program, _start(program, request), chunk=chunk)


@partial(jax.jit, donate_argnames="state")
def advance(program: Program, state: State, rounds: Int[Array, ""]) -> tuple[State, Output]:
    """Run some rounds; the state's memory is used again for the one returned."""
    state = loop.advance(program, state, rounds)
    return state, jax.tree.map(jnp.copy, output_of(state))


@partial(jax.jit, donate_argnames="state")
def watched_round(program: Program, state: State) -> tuple[State, loop.Round]:
    """Run one round and say what it did."""
    return loop.round(program, state)


@partial(jax.jit, static_argnames="chunk")
def score(target: Any, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, chunk: int):
    """Log-probability of every token after the first."""
    return score_tokens(target, tokens, length, chunk=chunk)
