"""What drafting and passes cost on this machine: c of each family, v once for all widths."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from specjax import compiled, loop
from specjax.adaptive import Adaptive
from specjax.api import Decoder
from specjax.bench.adapt import by_length
from specjax.bench.costs import time_passes
from specjax.metrics import Metrics
from specjax.program import Program
from specjax.settings import Settings
from specjax.tuning.families import Family


@dataclasses.dataclass(frozen=True)
class RoundCosts:
    """Times over that of a plain pass.

    ``draft`` is one draft token's (``per_token``), or that of drafting once, however much is
    found. ``passes`` are v by the number of draft nodes that a pass feeds.
    """

    draft: float
    per_token: bool
    passes: Mapping[int, float]

    def by_length(self, program: Program) -> list[float]:
        """v for drafts of 0, 1, ... K tokens."""
        found = by_length(program, [self.passes[num] for num in program.passes])
        # A drafter that listens to every pass never has a plain one.
        return [self.passes[program.passes[0]], *found[1:]]

    def spent(self, metrics: Metrics, program: Program, *, adaptive: bool) -> float:
        """What the rounds counted took, in plain passes.

        Tokens that are drawn are drawn to the end, whatever is judged of them, unless a policy
        says how many.
        """
        passes, total = self.by_length(program), 0.0
        for length, rounds in enumerate(metrics.draft_length_histogram):
            if self.per_token and not adaptive:
                length = program.drafter.depth
            drafting = self.draft * (length if self.per_token else 1)
            total += rounds * (passes[length] + drafting)
        return total

    def policy(self, program: Program) -> Adaptive:
        """Adapt by these costs."""
        draft = self.draft if self.per_token else 0.0
        costs = jnp.asarray(self.by_length(program), jnp.float32)
        return Adaptive(costs, draft_cost=jnp.float32(draft))

    def to_dict(self) -> dict[str, Any]:
        """The costs for JSON, whose names are strings."""
        passes = {str(num): cost for num, cost in self.passes.items()}
        return {"draft": self.draft, "per_token": self.per_token, "passes": passes}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> RoundCosts:
        """The costs that ``to_dict`` wrote."""
        passes = {int(num): float(cost) for num, cost in saved["passes"].items()}
        return cls(float(saved["draft"]), bool(saved["per_token"]), passes)


def measure(
    target: Any, families: Sequence[Family], prompt: list[int], repeats: int, settings: Settings
) -> list[RoundCosts]:
    """Costs of each family after ``prompt``; drafts are timed at the longest member.

    What a pass costs does not depend on who drafted, so it is timed once for all widths of those
    families whose passes run the same layers.
    """
    alike = defaultdict(list)
    for family in families:
        alike[_layers_left(Decoder(target, family.widest), prompt)].append(family)
    found: dict[int, RoundCosts] = {}
    for group in alike.values():
        # Its cache has room for every pass of the others.
        first = max(group, key=lambda family: family.widest.num_nodes)
        fed = sorted(set[int]({0}).union(*(family.num_fed(target) for family in group)))
        time = partial(time_passes, prompt=prompt, repeats=repeats, settings=settings)
        drafts, seconds = time(Decoder(target, first.widest), widths=fed)
        passes = {num: cost / seconds[0] for num, cost in zip(fed, seconds, strict=True)}
        found[first.index] = _costs(first, drafts / seconds[0], passes)
        for family in group:
            if family is not first:
                drafts, (plain,) = time(Decoder(target, family.widest), widths=(0,))
                found[family.index] = _costs(family, drafts / plain, passes)
    return [found[family.index] for family in families]


def _costs(family: Family, draft: float, passes: dict[int, float]) -> RoundCosts:
    per_token = family.widest.samples
    return RoundCosts(draft / family.widest.depth if per_token else draft, per_token, passes)


def _layers_left(decoder: Decoder, prompt: list[int]) -> tuple[int, ...] | None:
    """The layers that drafts leave to run; None for all."""
    call = decoder.prepare([prompt], max_new_tokens=1)
    begin = partial(compiled.begin, chunk=decoder.prefill_chunk)
    state = jax.eval_shape(begin, call.program, call.request)
    return jax.eval_shape(loop.propose, call.program, state)[0].draft.remaining
