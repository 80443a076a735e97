"""Rounds of the loop, watched: what was drafted, what was kept, and with which chance."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import loop, sampling, tree
from specjax.draw import fit_vocabulary
from specjax.loop import Round
from specjax.program import Program
from specjax.types import RUNNING, Draft, Sampling, State, Verdict
from specjax.verify.token import node_law, residual


@struct.dataclass
class Log:
    """One entry a round (R of them), row and draft node; rounds that were not run hold zeros.

    ``chance`` is what token verification accepts a ``tried`` node with, before its token is known:
    sum min(p, q). ``inside`` says whether the round's first token is one that the draft favours
    (q > p there), and ``mass`` how likely that is under p. ``ratio`` is min(1, p/q) of each node
    that was ``drawn``, ``overlap`` and ``spread`` its mean and variance for tokens drawn from q.
    """

    active: Bool[Array, "R B"]
    start: Int[Array, "R B"]
    accepted: Int[Array, "R B"]
    drafted: Bool[Array, "R B"]
    inside: Bool[Array, "R B"]
    mass: Float[Array, "R B"]
    depth: Int[Array, "R B N"]
    tried: Bool[Array, "R B N"]
    passed: Bool[Array, "R B N"]
    chance: Float[Array, "R B N"]
    drawn: Bool[Array, "R B N"]
    ratio: Float[Array, "R B N"]
    overlap: Float[Array, "R B N"]
    spread: Float[Array, "R B N"]


@partial(jax.jit, static_argnames="size")
def watch(
    program: Program, state: State, rounds: Int[Array, ""], *, size: int
) -> tuple[State, Log]:
    """Run up to ``rounds`` rounds, at most ``size``, and say what happened in each."""
    shape = jax.eval_shape(lambda s: _entry(s, loop.round(program, s)[1]), state)
    log = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), shape)

    def more(carry):
        state, number, _ = carry
        return (state.finish == RUNNING).any() & (number < jnp.minimum(rounds, size))

    def step(carry):
        state, number, log = carry
        after, seen = loop.round(program, state)
        log = jax.tree.map(lambda all, x: all.at[number].set(x), log, _entry(state, seen))
        return after, number + 1, log

    state, _, log = jax.lax.while_loop(more, step, (state, jnp.zeros((), jnp.int32), log))
    return state, log


def _entry(before: State, seen: Round) -> Log:
    draft, active = seen.draft, before.finish == RUNNING
    tried, passed, chance = walk(draft, seen.p, seen.verdict)
    drawn, ratio, overlap, spread = ratios(draft, seen.p)
    inside, mass = favoured(draft, seen.p, seen.emitted[:, 0])
    return Log(
        active=active,
        start=before.context.length,
        accepted=jnp.where(active, seen.verdict.num_accepted, 0),
        drafted=draft.valid.any(1),
        inside=inside & active,
        mass=jnp.where(active, mass, 0),
        depth=tree.depths(draft.parent)[:, 1:],
        tried=tried,
        passed=passed,
        chance=chance,
        drawn=drawn & active[:, None],
        ratio=ratio,
        overlap=overlap,
        spread=spread,
    )


def walk(
    draft: Draft, p: Float[Array, "B M V"], verdict: Verdict
) -> tuple[Bool[Array, "B N"], Bool[Array, "B N"], Float[Array, "B N"]]:
    """Which nodes token verification came to, which it accepted, and its chance at each.

    Given all before, a node is accepted with probability sum min(p, q) = 1 - TV(p, q), where p is
    what its elder siblings have left (Leviathan et al. 2023; SpecInfer for trees). Of a point mass
    q that is p(x).
    """
    batch, num = draft.tokens.shape
    place = jnp.arange(verdict.path.shape[1], dtype=jnp.int32)
    kept = jnp.where(place < verdict.num_accepted[:, None], verdict.path, 0)
    at, left = jnp.zeros(batch, jnp.int32), p[:, 0]
    columns = []
    for node in range(1, num + 1):
        q = node_law(draft, node, p.shape[-1], p.dtype)
        tried = draft.valid[:, node - 1] & (draft.parent[:, node - 1] == at)
        passed = tried & (kept == node).any(1)
        columns.append((tried, passed, jnp.minimum(left, q).sum(-1)))
        left = jnp.where(tried[:, None], residual(left, q), left)
        left = jnp.where(passed[:, None], p[:, node], left)
        at = jnp.where(passed, node, at)
    tried, passed, chance = (jnp.stack(x, axis=1) for x in zip(*columns, strict=True))
    return tried, passed, chance


def ratios(draft: Draft, p: Float[Array, "B M V"]) -> tuple[Array, Array, Array, Array]:
    """min(1, p/q) of every first child, and what its mean and variance are if it is drawn from q.

    No coin is needed and no verifier, and nodes beyond a rejection count, too: the mean is
    sum min(p, q) for whoever draws from the law that he records.
    """
    rows = jnp.arange(draft.tokens.shape[0])
    columns = []
    for node in range(1, draft.tokens.shape[1] + 1):
        parent, token = draft.parent[:, node - 1], draft.tokens[:, node - 1]
        elder = (draft.parent[:, : node - 1] == parent[:, None]).any(1)
        q, law = node_law(draft, node, p.shape[-1], p.dtype), p[rows, parent]
        ratio = jnp.minimum(1, law / jnp.where(q > 0, q, 1))
        overlap = (q * ratio).sum(-1)
        spread = (q * ratio**2).sum(-1) - overlap**2
        # Of a token beyond q's support, which cannot be drawn, the ratio would be infinite.
        ours = jnp.where(q[rows, token] > 0, ratio[rows, token], 1)
        columns.append((draft.valid[:, node - 1] & ~elder, ours, overlap, jnp.maximum(spread, 0)))
    drawn, ratio, overlap, spread = (jnp.stack(x, axis=1) for x in zip(*columns, strict=True))
    return drawn, ratio, overlap, spread


def favoured(
    draft: Draft, p: Float[Array, "B M V"], token: Int[Array, " B"]
) -> tuple[Bool[Array, " B"], Float[Array, " B"]]:
    """Whether the token is one of those that the first draft node's law favours, and p of these.

    Which they are is known before anything is drawn, so the first is true as often as the second
    says, whatever the verifier. A rule that leans to the draft or away from it does so here.
    """
    q = node_law(draft, 1, p.shape[-1], p.dtype)
    favours = (q > p[:, 0]) & draft.valid[:, :1]
    inside = jnp.take_along_axis(favours, token[:, None], axis=1)[:, 0]
    return inside, jnp.where(favours, p[:, 0], 0).sum(-1)


@jax.jit
def proposal(program: Program, state: State) -> tuple[Draft, Float[Array, "B V"]]:
    """What would be drafted next, and the target's next logits from its cache."""
    draft = loop.propose(program, state)[0].draft
    context = state.context
    first = context.length - 1
    count = jnp.ones_like(first)
    hidden, _, _ = program.target.extend(context.newest(), first, state.cache, count=count)
    return draft, program.target.unembed(hidden)[:, 0]


@jax.jit
def next_logits(
    program: Program, tokens: Int[Array, "B L"], length: Int[Array, " B"], values: Sampling
) -> Float[Array, "B V"]:
    """The target's processed logits after each text, from one pass and no loop: teacher forcing."""
    cache: Any = program.target.init_cache(*tokens.shape)
    hidden, _, _ = program.target.extend(tokens, 0 * length, cache, count=length)
    last = jnp.take_along_axis(hidden, (length - 1)[:, None, None], axis=1)
    states = sampling.start_processors(program.processors, tokens, length, values)
    none = jnp.zeros((len(length), 1), jnp.int32)
    logits = program.target.unembed(last)
    logits = fit_vocabulary(logits, program.target.vocab_size, program.num_tokens)
    processed = sampling.process(program.processors, states, values, logits, none[..., None], none)
    return processed[:, 0]
