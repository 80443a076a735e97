"""What tuning found: every candidate ranked, the one chosen, and a decoder of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax.api import Decoder
from specjax.columns import table
from specjax.protocols import Policy
from specjax.tuning.costs import RoundCosts
from specjax.tuning.families import Family
from specjax.tuning.trials import Trial

_HEADER = ("drafter", "#", "K", "nodes", "widths", "tokens/pass", "c", "v", "speedup")


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The candidate that is predicted to be fastest, and all others after it.

    ``trials`` are ranked, the fastest first. ``drafter``, ``policy`` and ``widths`` are what
    ``decoder`` is built with; ``drafter`` is None where plain decoding is as fast, and ``reason``
    says why. ``costs`` are those of each drafter given.
    """

    target: Any = dataclasses.field(repr=False)
    trials: tuple[Trial, ...]
    best: Trial
    reason: str
    costs: tuple[RoundCosts, ...]
    drafter: Any = None
    policy: Policy | None = None
    widths: tuple[int, ...] | None = None

    @classmethod
    def choose(
        cls,
        target: Any,
        families: Sequence[Family],
        margin: float,
        costs: Sequence[RoundCosts],
        trials: Sequence[Trial],
    ) -> Tuned:
        """Take the fastest, or plain decoding where that gains less than ``margin``."""
        best, reason = _verdict(trials, margin)
        said = (target, tuple(trials), best, reason, tuple(costs))
        if best.index is None:
            return cls(*said)
        family = families[best.index]
        program = family.program(target, best.draft_length, adaptive=best.adaptive)
        policy = costs[best.index].policy(program) if best.adaptive else None
        return cls(*said, program.drafter, policy, program.widths)

    def decoder(self, **kwargs: Any) -> Decoder:
        """Build a decoder as chosen; ``kwargs`` go to ``specjax.Decoder`` and win."""
        chosen = {"drafter": self.drafter, "policy": self.policy, "widths": self.widths}
        return Decoder(self.target, **{**chosen, **kwargs})

    def to_dict(self) -> dict[str, Any]:
        """What was measured and chosen, for JSON."""
        return {
            "best": dataclasses.asdict(self.best),
            "reason": self.reason,
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
            "costs": [cost.to_dict() for cost in self.costs],
        }

    def __str__(self) -> str:
        return "\n".join([*table([_HEADER, *map(_cells, self.trials)]), self.reason])


def _verdict(trials: Sequence[Trial], margin: float) -> tuple[Trial, str]:
    drafting = [trial for trial in trials if trial.index is not None]
    best = max(drafting, key=lambda trial: trial.speedup)
    length = "adaptive up to" if best.adaptive else "at"
    said = (
        f"{best.name} (number {best.index}), {length} draft length {best.draft_length}, is "
        f"predicted to be {best.speedup:.2f} times as fast as plain decoding"
    )
    if best.speedup >= 1 + margin:
        return best, said
    plain = next(trial for trial in trials if trial.index is None)
    return plain, f"plain decoding, since no drafter gains {margin:.0%}: {said}"


def _cells(trial: Trial) -> tuple[str, ...]:
    widths = " ".join(map(str, trial.widths))
    return (
        trial.name,
        "" if trial.index is None else str(trial.index),
        str(trial.draft_length),
        str(trial.num_nodes),
        f"adaptive {widths}" if trial.adaptive else widths,
        f"{trial.tokens_per_pass:.2f}",
        f"{trial.draft_cost:.3f}",
        f"{trial.pass_cost:.2f}",
        f"{trial.speedup:.2f}",
    )
