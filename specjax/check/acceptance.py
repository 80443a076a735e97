"""Measured rates against the chances they must have, by draft position and by round."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from specjax.check.report import Finding
from specjax.check.runs import Run, Runs, rule_name
from specjax.check.watch import Log
from specjax.verify import Token

SIZE = 1e-6
"""A sound pair fails a test this often."""
PARTS = 4
Numbers = np.ndarray | jax.Array
NOTHING_DRAFTED = "the drafter proposed nothing on these prompts; give it some that it drafts on"


def deviation_p(values: Numbers, means: Numbers, variances: Numbers | None = None) -> float:
    """How likely the values, all in [0, 1], are as far from their means in sum as they are.

    An upper bound for values one after the other, each with its mean given the past, however few
    or rare they are: 2 exp(-d^2 / (2 (V + d/3))), V the sum of the variances (Freedman 1975);
    without them the values are hits, of variance m (1 - m).

    >>> one_in_two = np.full(1000, 0.5)
    >>> deviation_p(np.arange(1000) % 2, one_in_two), deviation_p(np.ones(1000), one_in_two) < 1e-9
    (1.0, True)
    """
    means = np.clip(means.astype(np.float64), 0, 1)
    variances = means * (1 - means) if variances is None else variances.astype(np.float64)
    distance = abs(float(values.sum(dtype=np.float64) - means.sum()))
    spread = float(variances.sum()) + distance / 3
    return min(1.0, 2 * math.exp(-(distance**2) / (2 * spread))) if distance > 0.1 else 1.0


def acceptance(runs: Runs) -> Finding:
    """Under token verification each draft position is accepted as often as sum min(p, q) says."""
    run = runs.drafted(Token())
    figures = _by_position(run.log, run.rows & ~runs.greedy, runs.program.drafter.depth)
    figures |= _recorded_law(runs) | _by_output_position(runs)
    if not sum(figures["judged"]):
        return Finding("acceptance", None, figures, NOTHING_DRAFTED)
    passed = min([*figures["p"], *figures.get("drawn_p", [])]) >= SIZE
    return Finding(
        "acceptance",
        passed,
        figures,
        "accepted as often as sum min(p, q) says"
        if passed
        else "accepted at another rate than sum min(p, q): the law that the drafter records is "
        "not the one that its tokens are from (another temperature, before top-k, an argmax "
        "recorded as a draw), or it chooses by the token which of its drafts to submit",
    )


def _by_position(log: Log, rows: np.ndarray, depth: int) -> dict[str, Any]:
    tried, passed, chance, level = (
        x[:, rows] for x in (log.tried, log.passed, log.chance, log.depth)
    )
    names = ("judged", "measured", "expected", "p")
    figures: dict[str, Any] = {name: [] for name in names}
    for at in range(1, depth + 1):
        here = tried & (level == at)
        hits, chances = passed[here], chance[here]
        values = (len(hits), mean(hits), mean(chances), deviation_p(hits, chances))
        for name, value in zip(names, values, strict=True):
            figures[name].append(value)
    return figures


def _recorded_law(runs: Runs) -> dict[str, list[float]]:
    """Of every sampled draft token, judged or not: min(1, p/q) against its mean under q."""
    if not runs.program.drafter.samples:
        return {}  # of a point mass both are p(x)
    log = runs.drafted(Token()).log
    of = jax.tree.map(lambda x: x[:, ~runs.greedy], log)
    figures: dict[str, list[float]] = {"drawn_measured": [], "drawn_expected": [], "drawn_p": []}
    for at in range(1, runs.program.drafter.depth + 1):
        here = of.drawn & (of.depth == at)
        ratio, overlap, spread = of.ratio[here], of.overlap[here], of.spread[here]
        values = (mean(ratio), mean(overlap), deviation_p(ratio, overlap, spread))
        for name, value in zip(figures, values, strict=True):
            figures[name].append(value)
    return figures


def mean(values: Numbers) -> float:
    """NaN where there is nothing."""
    return float(values.mean()) if len(values) else math.nan


def _by_output_position(runs: Runs) -> dict[str, list[float]]:
    """Draft tokens kept a round, and rounds with a draft, in each part of the output in turn."""
    run = runs.drafted(next(v for v in [runs.program.verifier, Token()] if v.exact))
    log = run.log
    place = log.start - np.asarray(runs.rows.length)
    part = np.clip(place * PARTS // max(runs.budget, 1), 0, PARTS - 1)
    kept, drafted = [], []
    for at in range(PARTS):
        here = log.active & (part == at) & run.rows
        kept.append(mean(log.accepted[here]))
        drafted.append(mean(log.drafted[here]))
    return {"accepted_per_round_along_output": kept, "drafted_share_along_output": drafted}


def round_law(runs: Runs) -> Finding:
    """The first token of a round is one that the draft favours as often as p says."""
    figures: dict[str, Any] = {"rounds": {}, "measured": {}, "expected": {}, "p": {}}
    for verifier in runs.rules:
        if verifier.coupled and runs.program.drafter.samples:
            continue  # q is not recorded; the identity says more
        inside, mass = _first_tokens(runs.drafted(verifier), ~runs.greedy)
        if len(inside):
            values = (len(inside), float(inside.mean()), float(mass.mean()))
            for name, value in zip(figures, (*values, deviation_p(inside, mass)), strict=True):
                figures[name][rule_name(verifier)] = value
    if not figures["p"]:
        return Finding("round_law", None, figures, NOTHING_DRAFTED)
    wrong = [name for name, p in figures["p"].items() if p < SIZE]
    return Finding(
        "round_law",
        not wrong,
        figures,
        f"biased under {wrong[0]}: what a round emits leans to the draft or away from it"
        if wrong
        else "what a round emits leans neither to the draft nor away from it",
    )


def _first_tokens(run: Run, rows: np.ndarray) -> tuple[Numbers, Numbers]:
    """Of the rounds that could tell: those in which some tokens are favoured, but not all."""
    log, rows = run.log, rows & run.rows
    told = (log.active & log.drafted & (log.mass > 0))[:, rows]
    return log.inside[:, rows][told], log.mass[:, rows][told]
