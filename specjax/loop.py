"""All rounds of a batch in one program: draft, verify, accept, rewind.

``round`` maps a state to the next; ``generate`` is prefill and a while loop of rounds. Streaming,
serving and tracing call the very same ``round``.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from specjax import rng, sampling, tree
from specjax.commit import Kept, clip, commit, is_chain, tally
from specjax.drafting import num_fed, position_noise, propose
from specjax.draw import fit_vocabulary
from specjax.once import once
from specjax.program import Program
from specjax.record import Record
from specjax.types import OUT_OF_BUDGET, RUNNING, Context, Draft, Sampling, State, Stats, Verdict

__all__ = ["Program", "Round", "advance", "complete", "generate", "prefill", "round", "start"]


@struct.dataclass
class Round:
    """What one round did, for those who watch it; the loop drops it.

    ``emitted[:, :count]`` are the tokens added; p are the processed target laws after each node.
    """

    draft: Draft
    p: Float[Array, "B M V"]
    coins: Float[Array, "B N"] | Int[Array, "B M"]
    verdict: Verdict
    emitted: Int[Array, "B E"]
    count: Int[Array, " B"]


def start(
    program: Program,
    tokens: Int[Array, "B L"],
    length: Int[Array, " B"],
    *,
    sampling_values: Sampling,
    key: Key[Array, " B"],
    limit: Int[Array, " B"],
    cap: Int[Array, " B"] | None = None,
    num_top: int | None = None,
    chunk: int | None = None,
) -> State:
    """Allocate the state of a batch; ``tokens[:, :length]`` are the prompts, none of them empty.

    ``limit`` is the total length at which a row ends, at most L. ``cap`` bounds each row's draft
    length (default: the drafter's depth). ``num_top`` asks for a record of log-probabilities
    with so many alternatives a token. ``chunk`` is the widest prefill to come; without it no
    layer can forget what its window has left behind.

    Raises:
        ValueError: it is called under a ``shard_map`` that checks over which axes values vary, or
            with a layout, which is for ``jit``.
    """
    _check_shard_map(program, tokens)
    batch, capacity = tokens.shape
    drafter = program.drafter
    # Every pass may write all its nodes past the last committed token.
    slots = capacity + drafter.num_nodes + 1
    scratch = None if chunk is None else max(chunk, drafter.num_nodes + 1)
    # Histories hold a draft beyond the last token, too.
    seen = jnp.pad(tokens, ((0, 0), (0, drafter.tree_depth + 1)))
    cache = program.target.init_cache(batch, slots, scratch=scratch)
    begin = partial(sampling.start_processors, tokens=seen, length=length, sampling=sampling_values)
    state = State(
        context=Context(tokens, length),
        cache=cache,
        drafter=drafter.init(program.target, batch, slots),
        processors=begin(program.processors),
        draft_processors=begin(program.draft_processors or ()),
        sampling=sampling_values,
        key=key,
        limit=limit,
        finish=jnp.where(length < limit, RUNNING, OUT_OF_BUDGET).astype(jnp.int8),
        cap=jnp.full(batch, drafter.depth, jnp.int32) if cap is None else cap,
        drafted=jnp.zeros((batch, capacity), bool),
        stats=Stats.zeros(batch, drafter.depth, sparse=getattr(cache, "experts", None) is not None),
        begin=length + 0,
        matching=None if program.stops is None else jnp.zeros(batch, jnp.int32),
        record=None if num_top is None else Record.empty(batch, capacity, num_top),
        policy=()
        if program.policy is None
        else program.policy.init(batch, drafter.depth, program.num_kinds),
    )
    return program.laid_out(state)


def _check_shard_map(program: Program, tokens: Int[Array, "B L"]) -> None:
    """Refuse what would fail deep in a loop, whose first values vary over no axis."""
    if program.layout is not None and jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            "program: its layout is for jit; under shard_map leave it out, and give a target with "
            "layout=None"
        )
    if varying := jax.typeof(tokens).mat.varying:
        raise ValueError(
            f"tokens: vary over the mesh axes {', '.join(sorted(map(str, varying)))}, which "
            "shard_map checks by default; call jax.shard_map(..., check_vma=False)"
        )


def prefill(program: Program, state: State, *, chunk: int) -> State:
    """Feed positions 0..length-2 in chunks; the newest token is left for the first round."""
    context = state.context
    padded = jnp.pad(context.tokens, ((0, 0), (0, chunk)))
    end = jnp.where(state.finish == RUNNING, context.length - 1, 0)

    def step(carry):
        first, cache, drafter_state = carry
        tokens = jax.lax.dynamic_slice_in_dim(padded, first, chunk, axis=1)
        begin = jnp.broadcast_to(first, end.shape)
        count = jnp.clip(end - first, 0, chunk)
        _, cache, features = program.target.extend(
            tokens, begin, cache, count=count, capture=program.drafter.wants
        )
        drafter_state = program.drafter.observe(
            program.target, drafter_state, tokens, begin, count, features
        )
        return first + chunk, cache, drafter_state

    first = jnp.zeros((), jnp.int32)
    carry = (first, state.cache, state.drafter)
    _, cache, drafter_state = jax.lax.while_loop(lambda c: c[0] < end.max(), step, carry)
    return dataclasses.replace(state, cache=cache, drafter=drafter_state)


def round(program: Program, state: State) -> tuple[State, Round]:
    """Draft, verify in one pass of the target, keep a prefix and one more token, commit."""
    with jax.named_scope("draft"):
        proposal, state = propose(program, state)
    return verify(program, state, proposal.draft, proposal.noise)


def verify(
    program: Program, state: State, draft: Draft, noise: Float[Array, "B E V"] | None
) -> tuple[State, Round]:
    """The second half of a round; ``noise`` is what the draft was drawn with, if it was."""
    with jax.named_scope("verify"):
        logits, features, cache = _target_pass(program, state, draft)
        state = dataclasses.replace(state, cache=cache)
    with jax.named_scope("accept"):
        processed, p, coins = judge(program, state, draft, logits, noise)
        verdict = program.verifier.accept(draft, p, coins)
        emitted, num = emit(program, state, draft, verdict)
    with jax.named_scope("commit"):
        count, finish = clip(program, state, emitted, num, verdict.num_accepted)
        room = state.limit - state.context.length
        stats = tally(state.stats, draft, num, count, room, getattr(cache, "experts", None))
        kept = Kept(draft, verdict, emitted, count)
        state = commit(program, state, kept, features, logits, processed)
    state = dataclasses.replace(state, finish=finish, stats=stats)
    return state, Round(draft, p, coins, verdict, emitted, count)


def fitted_round(program: Program, state: State) -> State:
    """A round whose pass is no wider than its drafts need, of the widths it is compiled for.

    The widths stand one after the other, and at most one of them runs.
    """
    if len(program.passes) == 1:
        return round(program, state)[0]
    with jax.named_scope("draft"):
        proposal, state = propose(program, state)
    fed, narrower = num_fed(proposal.draft), -1
    for num in program.passes:

        def turn(state: State, num: int = num) -> State:
            return verify(program, state, proposal.first(num), proposal.noise)[0]

        state = once((fed > narrower) & (fed <= num), turn, state)
        narrower = num
    return state


def advance(program: Program, state: State, rounds: Int[Array, ""] | int) -> State:
    """Run up to ``rounds`` rounds, fewer when every row has finished first."""

    def more(carry):
        state, left = carry
        return (state.finish == RUNNING).any() & (left > 0)

    def step(carry):
        state, left = carry
        return program.laid_out(fitted_round(program, state)), left - 1

    return jax.lax.while_loop(more, step, (state, jnp.asarray(rounds, jnp.int32)))[0]


def generate(program: Program, state: State, *, chunk: int = 64) -> State:
    """Prefill and decode every row to its end."""
    return complete(program, prefill(program, state, chunk=chunk))


def complete(program: Program, state: State) -> State:
    """Decode every row to its end. Each round adds a token, so the budget bounds their number."""
    return advance(program, state, (state.limit - state.context.length).max())


def _target_pass(program: Program, state: State, draft: Draft):
    """Feed the newest token and every draft node; only rows still running write."""
    first = state.context.length - 1
    inputs = jnp.concatenate([state.context.newest(), draft.tokens], axis=1)
    shape = {} if is_chain(program, draft) else tree.fed_from(draft.parent, first)
    hidden, cache, features = program.target.extend(
        inputs if draft.hidden is None else draft.hidden,
        first,
        state.cache,
        count=jnp.where(state.finish == RUNNING, inputs.shape[1], 0),
        layers=draft.remaining,
        capture=program.drafter.wants,
        **shape,
    )
    logits = program.target.unembed(hidden)
    logits = fit_vocabulary(logits, program.target.vocab_size, program.num_tokens)
    return logits, features, cache


def judge(program: Program, state: State, draft: Draft, logits, noise):
    """Processed logits and laws after every node, and the coins the verifier asks for."""
    depth, most = tree.depths(draft.parent), min(program.drafter.depth, draft.tokens.shape[1])
    path = tree.path_tokens(draft.tokens, tree.paths(draft.parent, most))
    processed = sampling.process(
        program.processors, state.processors, state.sampling, logits, path, depth
    )
    greedy = jnp.broadcast_to(state.sampling.temperature[:, None] == 0, depth.shape)
    p = sampling.law(processed, greedy)
    if not program.verifier.coupled:
        key = rng.stream(state.key, rng.ACCEPT, state.context.length)
        return processed, p, rng.uniforms(key, draft.tokens.shape[1], p.dtype)
    if noise is None:
        noise = position_noise(program, state, most + 1)
    at_depth = jax.vmap(lambda row, d: row[d])(noise, depth)
    ranked = sampling.perturb(processed, at_depth, greedy)
    draws = jnp.where(ranked.max(-1) > -jnp.inf, ranked.argmax(-1).astype(jnp.int32), -1)
    return processed, p, draws


def emit(program: Program, state: State, draft: Draft, verdict: Verdict):
    """The accepted tokens and one drawn from ``last``; a row with no allowed token adds none."""
    logits = jnp.log(verdict.last)
    if not program.verifier.coupled:  # a coupled verdict is the draw itself
        key = rng.stream(state.key, rng.LAST, state.context.length)
        logits = jax.lax.cond(
            (state.sampling.temperature > 0).any(),
            lambda: logits + rng.gumbel(key, logits.shape[-1]).astype(logits.dtype),
            lambda: logits,
        )
    last = logits.argmax(-1).astype(jnp.int32)
    path = verdict.path[:, : program.drafter.depth]
    tokens = jnp.pad(tree.path_tokens(draft.tokens, path), ((0, 0), (0, 1)))
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32) == verdict.num_accepted[:, None]
    alive = verdict.last.sum(-1) > 0
    return jnp.where(place, last[:, None], tokens), verdict.num_accepted + alive.astype(jnp.int32)
