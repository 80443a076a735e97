"""A comparison in words and in JSON."""

from __future__ import annotations

import math
from typing import Any

from specjax.bench import Comparison

NOTICEABLE = 0.03
"""Less than this is no difference: repeated runs differ by as much."""


def comparison_lines(comparison: Comparison) -> list[str]:
    """What was measured, what it should have been, and what follows."""
    costs, num = comparison.costs, comparison.costs.draft_length + 1
    return [
        f"plain          {comparison.plain_tokens_per_second:7.1f} tokens/s",
        f"speculative    {comparison.speculative_tokens_per_second:7.1f} tokens/s,"
        f" {comparison.ratio:.2f} times plain, prefill included in both",
        f"acceptance E   {comparison.acceptance_length:7.2f} tokens per target pass",
        f"draft cost c   {costs.draft_cost:7.3f} plain steps per draft token",
        f"pass cost v    {costs.pass_cost:7.2f} plain steps per pass over {num} positions",
        f"predicted      {comparison.predicted:7.2f} times plain = E / ({num - 1} c + v),"
        " prefill left out",
        f"tokens         {tokens_in_words(comparison)}",
        verdict(comparison),
    ]


def verdict(comparison: Comparison) -> str:
    """Whether speculation pays here, and why."""
    ratio = comparison.ratio
    if math.isnan(ratio):
        return "nothing to say: no token was made"
    pays = "pays" if ratio > 1 + NOTICEABLE else "does not pay"
    if abs(ratio - 1) <= NOTICEABLE:
        pays = "makes no difference"
    brings = f"each pass brings {comparison.acceptance_length:.2f} tokens"
    cost = f"costs {comparison.costs.round_cost:.2f} plain steps, drafting included"
    return f"{pays}: {brings} and {cost}"


def tokens_in_words(comparison: Comparison) -> str:
    """Whether both sides made the same tokens, and whether they had to."""
    at = comparison.first_difference
    if at is None:
        return f"equal, all {len(comparison.plain.tokens[0])}"
    if comparison.must_agree:
        return (
            f"DIFFER from number {at + 1} on, though they must be equal unless the target's best "
            "two there are within rounding of each other (1e-4)"
        )
    return (
        f"differ from number {at + 1} on, as they may: at temperature > 0 this verifier keeps the "
        "target's law, not its draws; coupled keeps both"
    )


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """The same for a program."""
    numbers = {
        "plain_tokens_per_second": comparison.plain_tokens_per_second,
        "speculative_tokens_per_second": comparison.speculative_tokens_per_second,
        "ratio": comparison.ratio,
        "mean_acceptance_length": comparison.acceptance_length,
        "draft_cost": comparison.costs.draft_cost,
        "pass_cost": comparison.costs.pass_cost,
        "predicted_speedup": comparison.predicted,
    }
    known = {name: None if math.isnan(x) else x for name, x in numbers.items()}
    return known | {
        "tokens_equal": comparison.first_difference is None,
        "tokens_must_be_equal": comparison.must_agree,
        "verdict": verdict(comparison),
    }
