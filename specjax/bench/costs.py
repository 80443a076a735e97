"""What a draft and its check cost, in plain target passes: c and v of the speedup formula."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import compiled, loop, metrics
from specjax.api import Decoder
from specjax.bench.timing import interleaved_medians
from specjax.program import Program
from specjax.prompts import Prompt
from specjax.settings import Settings
from specjax.types import Context, State

NUM = 16
"""Passes or drafts a dispatch: enough that the dispatch itself is lost in them."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Times over that of a target pass over one position.

    ``draft_cost`` (c) is one draft token's, ``pass_cost`` (v) that of a pass over the newest token
    and all draft nodes.

    >>> costs = Costs(draft_length=4, draft_cost=0.1, pass_cost=1.0)
    >>> round(costs.round_cost, 3), round(costs.speedup(3.362), 2)
    (1.4, 2.4)
    """

    draft_length: int
    draft_cost: float
    pass_cost: float

    @property
    def round_cost(self) -> float:
        """K c + v: a round's cost, in plain steps. It pays where E exceeds it."""
        return self.draft_length * self.draft_cost + self.pass_cost

    def speedup(self, acceptance_length: float) -> float:
        """E / (K c + v), for rounds that emit ``acceptance_length`` tokens on average."""
        return metrics.speedup(
            acceptance_length, self.draft_length, self.draft_cost, self.pass_cost
        )


def measure_costs(
    decoder: Decoder, prompt: Prompt, *, repeats: int = 5, **settings: Unpack[Settings]
) -> Costs:
    """Measure c and v after ``prompt``: many of a kind in one dispatch, medians of turns.

    Args:
        decoder: whose drafter and target are measured.
        prompt: what is in the caches meanwhile.
        repeats: turns.
        **settings: as for ``Decoder.generate``; ``max_new_tokens`` is the room to allocate.

    Raises:
        ValueError: the decoder decodes plainly, or a setting is out of range.
    """
    depth = decoder.program.drafter.depth
    drafts, (one, wide) = time_passes(decoder, prompt, (0, None), repeats, settings)
    return Costs(depth, draft_cost=drafts / one / max(depth, 1), pass_cost=wide / one)


def middling(prompts: Sequence[list[int]]) -> list[int]:
    """The prompt of middling length, after which costs are typical.

    >>> middling([[1, 2, 3], [4], [5, 6]])
    [5, 6]
    """
    return sorted(prompts, key=len)[len(prompts) // 2]


def time_passes(
    decoder: Decoder,
    prompt: Any,
    widths: Sequence[int | None],
    repeats: int,
    settings: Settings,
) -> tuple[float, list[float]]:
    """Seconds of NUM drafts, and of NUM passes that feed so many draft nodes; None feeds all.

    Raises:
        ValueError: the decoder decodes plainly, or a setting is out of range.
    """
    if decoder.program.drafter.num_nodes == 0:
        raise ValueError("decoder: has no drafter, so there are no costs to measure")
    # A row without budget would not even be prefilled.
    room: Settings = {"max_new_tokens": 128, **settings}
    if room["max_new_tokens"] == 0:
        room["max_new_tokens"] = 1
    call = decoder.prepare(decoder.encode(prompt), **room)
    program = call.program
    state = compiled.begin(program, call.request, chunk=decoder.prefill_chunk)
    # What a draft brings along, such as the states of the first layers, is not run again.
    draft = jax.eval_shape(loop.propose, program, state)[0].draft

    def passes(num: int | None) -> None:
        target_passes(
            program.target,
            state.context,
            state.cache,
            width=1 + (program.drafter.num_nodes if num is None else num),
            layers=None if num == 0 else draft.remaining,
        ).block_until_ready()

    drafts, *rest = interleaved_medians(
        [
            lambda: jax.block_until_ready(propose_and_append(program, state)),
            *(partial(passes, num) for num in widths),
        ],
        repeats,
    )
    return drafts, rest


@partial(jax.jit, static_argnames=("width", "layers"))
def target_passes(
    target: Any,
    context: Context,
    cache: Any,
    *,
    width: int,
    layers: tuple[int, ...] | None = None,
) -> Int[Array, "B T"]:
    """Run NUM passes over ``width`` positions, the argmax of each feeding the next.

    With ``layers`` only those run, upon embeddings.
    """
    first = context.length - 1

    def step(_, carry):
        tokens, cache = carry
        inputs = tokens if layers is None else target.embed(tokens)
        hidden, cache, _ = target.extend(
            inputs, first, cache, count=jnp.full_like(first, width), layers=layers
        )
        return target.unembed(hidden).argmax(-1).astype(jnp.int32), cache

    tokens = jnp.broadcast_to(context.newest(), (len(first), width))
    return jax.lax.fori_loop(0, NUM, step, (tokens, cache))[0]


@jax.jit
def propose_and_append(program: Program, state: State) -> Context:
    """Draft NUM times, each time committing the first draft token as if it alone were kept.

    What the drafter does to keep up with committed tokens counts as drafting.
    """
    features = _features(program, state)

    def step(_, state):
        proposal, state = loop.propose(program, state)
        before = state.context
        begin, width = before.length - 1, program.drafter.depth + 1
        drafter_state = program.drafter.observe(
            program.target,
            state.drafter,
            before.window(begin, width),
            begin,
            jnp.ones_like(begin),
            features,
        )
        context = _append(before, proposal.draft.tokens[:, 0])
        return dataclasses.replace(state, context=context, drafter=drafter_state)

    return jax.lax.fori_loop(0, NUM, step, state).context


def _features(program: Program, state: State) -> tuple[Array, ...]:
    """The layers that the drafter watches, as one pass gives them."""
    begin, width = state.context.length - 1, program.drafter.depth + 1
    if not program.drafter.wants:
        return ()
    _, _, features = program.target.extend(
        state.context.window(begin, width),
        begin,
        state.cache,
        count=jnp.full_like(begin, width),
        capture=program.drafter.wants,
    )
    return features


def _append(context: Context, token: Int[Array, " B"]) -> Context:
    tokens = jax.vmap(lambda row, at, new: row.at[at].set(new))(
        context.tokens, context.length, token
    )
    return Context(tokens, context.length + 1)
