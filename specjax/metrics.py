"""What a call's counters say: every ratio is derived here, on the host.

E, the mean acceptance length, counts the tokens that a target pass emits, bonus included;
accepted draft tokens are E - 1 a round. A rate over nothing is NaN, never 0 or 1.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from specjax.types import Stats


def ratio(part: float, whole: float) -> float:
    """``part / whole``, NaN over nothing."""
    return float(part) / float(whole) if whole else math.nan


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Counts and times of a call, pooled over rows, or of one row.

    ``outcomes[d, a]`` counts rounds whose judged draft was d deep and of which a tokens were
    kept. ``draft_cost`` (c) is the time of drafting one token over that of a plain step, NaN
    where it was not measured. Times are seconds, NaN where unknown. Of a sparse target,
    ``num_experts_read`` counts the distinct experts of every pass, over all layers, and
    ``experts_per_position`` those that one position reads.
    """

    num_rounds: int
    num_draft_tokens: int
    num_clipped_tokens: int
    outcomes: np.ndarray
    seconds: float = math.nan
    time_to_first_token: float = math.nan
    gaps: tuple[float, ...] = ()
    draft_cost: float = math.nan
    num_experts_read: int | None = None
    experts_per_position: int | None = None

    @classmethod
    def from_stats(cls, stats: Stats, row: int | None = None, **times) -> Metrics:
        """Read the counters of one row, or of all rows together."""
        rows = slice(None) if row is None else slice(row, row + 1)
        return cls(
            num_rounds=int(np.asarray(stats.rounds)[rows].sum()),
            num_draft_tokens=int(np.asarray(stats.nodes)[rows].sum()),
            num_clipped_tokens=int(np.asarray(stats.clipped)[rows].sum()),
            outcomes=np.asarray(stats.outcomes)[rows].sum(0),
            num_experts_read=(
                None if stats.experts is None else int(np.asarray(stats.experts)[rows].sum())
            ),
            **times,
        )

    @property
    def acceptance_histogram(self) -> list[int]:
        """Rounds that kept 0, 1, ... K draft tokens."""
        return self.outcomes.sum(0).tolist()

    @property
    def draft_length_histogram(self) -> list[int]:
        """Rounds whose judged draft was 0, 1, ... K deep."""
        return self.outcomes.sum(1).tolist()

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens kept."""
        return int(self.outcomes.sum(0) @ np.arange(len(self.outcomes)))

    @property
    def num_tokens(self) -> int:
        """Tokens emitted: those kept, and one more a round."""
        return self.num_rounds + self.num_accepted_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """E: tokens emitted per target pass, at least 1."""
        return ratio(self.num_tokens, self.num_rounds)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted."""
        return ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def acceptance_rate_at(self) -> list[float]:
        """For each draft position: how often it was accepted, given that it was judged.

        Position i is judged where the draft reached it and all before it were accepted.
        """
        depth = len(self.outcomes) - 1
        kept = [int(self.outcomes[i:, i:].sum()) for i in range(1, depth + 1)]
        judged = [int(self.outcomes[i:, i - 1 :].sum()) for i in range(1, depth + 1)]
        return [ratio(a, b) for a, b in zip(kept, judged, strict=True)]

    @property
    def accepted_per_draft_cost(self) -> float:
        """Accepted / (drafted x c): what a drafter brings for what it costs."""
        return ratio(self.num_accepted_tokens, self.num_draft_tokens * self.draft_cost)

    @property
    def target_passes_per_token(self) -> float:
        """Cost of a token in target passes, drafting included."""
        return ratio(self.num_rounds + self.num_draft_tokens * self.draft_cost, self.num_tokens)

    @property
    def experts_per_pass(self) -> float:
        """Distinct experts that a pass over one row reads, summed over layers."""
        return ratio(self.num_experts_read or math.nan, self.num_rounds)

    @property
    def expert_read_ratio(self) -> float:
        """Experts that a verifying pass reads over those of a pass over one position.

        Where this is far above 1, a pass over K + 1 positions is no longer nearly free.
        """
        return ratio(self.experts_per_pass, self.experts_per_position or 0)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted a second, prefill included."""
        return ratio(self.num_tokens, self.seconds)

    @property
    def time_between_tokens(self) -> dict[str, float]:
        """Seconds between tokens as they were handed out: mean, p50 and p99."""
        if not self.gaps:
            return {"mean": math.nan, "p50": math.nan, "p99": math.nan}
        p50, p99 = np.percentile(self.gaps, [50, 99])
        return {"mean": float(np.mean(self.gaps)), "p50": float(p50), "p99": float(p99)}

    def to_dict(self) -> dict:
        """Every count and ratio by name, for JSON: NaN becomes None."""
        names = (
            "num_rounds num_draft_tokens num_accepted_tokens num_clipped_tokens num_tokens "
            "mean_acceptance_length draft_acceptance_rate acceptance_rate_at acceptance_histogram "
            "draft_length_histogram draft_cost accepted_per_draft_cost target_passes_per_token "
            "experts_per_position experts_per_pass expert_read_ratio "
            "seconds tokens_per_second time_to_first_token time_between_tokens"
        )
        return {name: _jsonable(getattr(self, name)) for name in names.split()}


def _jsonable(value):
    if isinstance(value, dict):
        return {key: _jsonable(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_jsonable(x) for x in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def expected_acceptance_length(rates: list[float]) -> float:
    """E = 1 + sum over k of the product of the first k acceptance rates (Leviathan 2023, eq. 1).

    >>> round(expected_acceptance_length([0.8] * 4), 3)
    3.362
    """
    return 1 + float(np.cumprod(rates).sum())


def speedup(acceptance_length: float, draft_length: int, draft_cost: float, pass_cost: float):
    """E / (K c + v): tokens per target-pass equivalent (Leviathan 2023, theorem 3.8, with v).

    ``pass_cost`` is v, the time of a pass over K + 1 positions over that of a pass over one.

    >>> round(speedup(3.362, 4, 0.1, 1.0), 2)
    2.4
    """
    return acceptance_length / (draft_length * draft_cost + pass_cost)
