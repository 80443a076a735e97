"""After any rounds, target and drafter go on as they would with caches filled anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from specjax.check.report import Finding
from specjax.check.runs import Runs
from specjax.check.watch import proposal
from specjax.protocols import Feedback
from specjax.types import RUNNING, Draft, State
from specjax.verify import Token

STAGES = (1, 1, 2, 3)
"""Rounds before each look: rejections and full acceptance leave a cache in different ways."""
SHARE = 0.05
"""Of point-mass drafts this many may differ: a drafter that ranks by scores has its near ties."""


@dataclasses.dataclass(frozen=True)
class Look:
    """Grown caches against fresh ones: the active rows' next logits and next drafts."""

    logits: float
    law: float
    drafts: int
    unequal: int


def target_cache(looks: list[Look], tolerance: float) -> Finding:
    """The target's next logits are those of a fresh prefill."""
    worst = max((look.logits for look in looks), default=0.0)
    passed = worst <= 10 * tolerance
    return Finding(
        "target_cache",
        passed,
        {"largest_difference_of_logits": worst, "looks": len(looks)},
        "the target's cache is that of a fresh prefill"
        if passed
        else "after some rounds the target's cache no longer holds the text: look at what writes "
        "to it, and at compact",
    )


def drafter_cache(runs: Runs, looks: list[Look], tolerance: float) -> Finding:
    """The drafter's next draft is that of a fresh prefill, drawn with the same noise."""
    name = "drafter_cache"
    figures: dict[str, Any] = {
        "drafts": sum(look.drafts for look in looks),
        "unequal_drafts": sum(look.unequal for look in looks),
        "largest_difference_of_laws": max((look.law for look in looks), default=0.0),
    }
    if isinstance(runs.program.drafter, Feedback):
        return Finding(name, None, figures, "its drafts depend on past rounds, by design")
    if not figures["drafts"]:
        return Finding(name, None, figures, "no draft was made where two could be compared")
    unequal = figures["unequal_drafts"] > SHARE * figures["drafts"]
    passed = not unequal and figures["largest_difference_of_laws"] <= 10 * tolerance
    return Finding(
        name,
        passed,
        figures,
        "the drafter drafts as from a fresh prefill"
        if passed
        else "the drafter's cache drifts: after some rounds it drafts otherwise than a fresh one "
        "on the same text; it holds rejected drafts, or lacks tokens that were kept",
    )


def looks(runs: Runs) -> Iterator[Look]:
    """Grown caches against fresh ones, after some rounds and some more."""
    runs.note("comparing caches with fresh ones")
    program = runs.judged_by(Token())
    grown = runs.begin(runs.rows)
    for rounds in STAGES:
        grown, _ = runs.watch(program, grown, rounds)
        context = grown.context
        asked = dataclasses.replace(runs.rows, tokens=context.tokens, length=context.length)
        anew = runs.begin(asked)
        fresh = dataclasses.replace(grown, cache=anew.cache, drafter=anew.drafter)
        if (np.asarray(grown.finish) == RUNNING).any():
            yield _look(grown, proposal(program, grown), proposal(program, fresh))


def _look(state: State, ours: tuple[Draft, Array], theirs: tuple[Draft, Array]) -> Look:
    active = state.finish == RUNNING
    logits = jnp.where(active[:, None], jnp.abs(ours[1] - theirs[1]), 0).max()
    drawn = active & (state.sampling.temperature > 0)
    found = jax.device_get((logits, *_differences(ours[0], theirs[0], active, drawn)))
    return Look(float(found[0]), float(found[1]), int(found[2]), int(found[3]))


@jax.jit
def _differences(
    ours: Draft, theirs: Draft, active: Bool[Array, " B"], drawn: Bool[Array, " B"]
) -> tuple[Float[Array, ""], Array, Array]:
    """Largest difference of the laws, how many drafts there were, and how many differ.

    Nodes are compared as far as all before them are equal. Where the laws are known they decide,
    in rows that sample: the same law draws the same token but for near ties.
    """
    both = ours.valid & theirs.valid & active[:, None]
    equal = (ours.tokens == theirs.tokens) & (ours.parent == theirs.parent)
    if ours.probs is None or theirs.probs is None:
        law = jnp.zeros((), jnp.float32)
        return law, both.any(1).sum(), (both & ~equal).any(1).sum()
    before = jnp.cumprod(jnp.pad(equal, ((0, 0), (1, 0)), constant_values=True)[:, :-1], axis=1)
    judged = both & before.astype(bool) & drawn[:, None]
    gaps = jnp.where(judged, jnp.abs(ours.probs - theirs.probs).max(-1), 0)
    return gaps.max().astype(jnp.float32), judged.any(1).sum(), jnp.zeros((), jnp.int32)
