"""What must hold without statistics: equal tokens, and full acceptance of the target by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import rng, sampling
from specjax.check.report import Finding
from specjax.check.runs import SELF_RULES, Run, Runs, rule_name
from specjax.check.watch import next_logits
from specjax.metrics import ratio
from specjax.verify import Token


def self_acceptance(runs: Runs, tolerance: float) -> Finding:
    """The target drafts for itself: q = p, so every draft is kept, up to rounding."""
    least = 1 - 10 * tolerance
    rates, rejections, passed = {}, {}, True
    for verifier in SELF_RULES:
        run, name = runs.itself(verifier), rule_name(verifier)
        outcomes = np.asarray(run.state.stats.outcomes)[run.rows].sum(0)
        drafted, kept = np.indices(outcomes.shape)
        rates[name] = ratio(float((kept * outcomes).sum()), float((drafted * outcomes).sum()))
        rejections[name] = int(outcomes[kept < drafted].sum())
        passed &= bool(rates[name] >= least or rejections[name] <= 1)  # one near tie is rounding
    distance = _distance(runs.itself(Token()), ~runs.greedy)
    passed &= distance <= 10 * tolerance
    return Finding(
        "self_acceptance",
        passed,
        {"rate": rates, "rejections": rejections, "mean_distance_of_laws": distance},
        "the target accepts itself"
        if passed
        else "the target rejects itself: passes of different widths disagree, or a cache drifts",
    )


def _distance(run: Run, rows: np.ndarray) -> float:
    """Mean 1 - sum min(p, q) where a draft was judged: 0 for equal laws."""
    rows = rows & run.rows
    tried = run.log.tried[:, rows]
    return float(np.mean(1 - run.log.chance[:, rows][tried])) if tried.any() else 0.0


def greedy_identity(runs: Runs, tolerance: float) -> Finding:
    """At temperature 0 every verifier gives the tokens of plain decoding."""
    return _same_as_plain(runs, "greedy_identity", runs.rules, runs.greedy, tolerance)


def coupled_identity(runs: Runs, tolerance: float) -> Finding:
    """Under coupled verification a seed gives the tokens of plain sampling."""
    rules = [verifier for verifier in runs.rules if verifier.coupled]
    return _same_as_plain(runs, "coupled_identity", rules, ~runs.greedy, tolerance)


def _same_as_plain(runs: Runs, name: str, rules, rows: np.ndarray, tolerance: float) -> Finding:
    plain, parted = runs.plain(), []
    for verifier in rules:
        found = divergences(runs, plain, runs.drafted(verifier), rows)
        parted += [{"verifier": rule_name(verifier), **x} for x in found]
    real = [x for x in parted if not x["gap"] < tolerance]
    figures: dict[str, Any] = {
        "rows": int(rows.sum()),
        "tokens": runs.budget * int(rows.sum()),
        "verifiers": [rule_name(v) for v in rules],
        "near_ties": [x for x in parted if x["gap"] < tolerance],
        "differences": real,
    }
    if not real:
        return Finding(name, True, figures, "the tokens of plain decoding")
    first = real[0]
    return Finding(
        name,
        False,
        figures,
        f"under {first['verifier']} row {first['row']} parts from plain decoding at token "
        f"{first['token']}: a token was kept or emitted that the target would not have chosen",
    )


def divergences(runs: Runs, plain: Run, other: Run, rows: np.ndarray) -> list[dict[str, Any]]:
    """Where rows part from plain decoding, and how far apart the candidates were there.

    The gap is that of logits with the temperature and the shared noise in them, from the best to
    the worse of the two tokens. Below 1e-4 in float32 it is rounding.
    """
    unequal = (plain.tokens != other.tokens) & (rows & other.rows)[:, None]
    if not unequal.any():
        return []
    length = np.asarray(runs.rows.length)
    at = np.where(unequal.any(1), unequal.argmax(1), length).astype(np.int32)
    ranked = ranked_logits(runs, plain, at)
    found = []
    for row in np.flatnonzero(unequal.any(1)):
        candidates = [int(run.tokens[row, at[row]]) for run in (plain, other)]
        gap = float(ranked[row].max() - ranked[row, candidates].min())
        found.append({"row": int(row), "token": int(at[row] - length[row]), "gap": gap})
    return found


def ranked_logits(runs: Runs, plain: Run, length: np.ndarray) -> np.ndarray:
    """What plain decoding takes the argmax of at position ``length`` of each row."""
    at = jnp.asarray(length)
    values = runs.rows.sampling
    logits = next_logits(runs.program, jnp.asarray(plain.tokens), at, values)
    noise = rng.position_noise(rng.row_keys(runs.rows.seeds), at, 1, logits.shape[-1])[:, 0]
    return np.asarray(jax.jit(sampling.perturb)(logits, noise, values.temperature == 0))
