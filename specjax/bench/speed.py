"""The model of the speed beside the measurement, for one row.

A round costs its drafts and its pass, in plain passes: K c + v. What is then to be expected of
tokens a second over those of plain decoding is

    decoding alone    E / (K c + v)
    whole calls       the same tokens over  prefill + rounds x (K c + v) x plain pass

where c, v and the plain pass are timed in this run (``specjax.bench.costs``), prefill is timed for
every call, and E, the tokens a round, and the rounds are those of the calls. E is also 1 plus, for
each draft position, the share of rounds that kept it. Where drafts and passes have several
lengths, each round is charged for its own. What a round does beside drafting and its pass
(sampling, the verdict, keeping counts) is in the measurement and not in the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from specjax.api import Decoder
from specjax.bench.costs import NUM, time_passes
from specjax.bench.machine import MachineSpeed
from specjax.bench.records import Answer, Record, answers_of, pooled_metrics
from specjax.bench.variants import PLAIN, Variant, room_for
from specjax.metrics import ratio
from specjax.settings import Settings


@dataclasses.dataclass(frozen=True)
class RoundCosts:
    """What a contestant's rounds cost: in plain passes, of which one takes ``plain_seconds``.

    ``nodes`` are the draft nodes of the passes it is compiled for, ascending, and ``pass_costs``
    (v) theirs; ``by_depth`` are the nodes that a draft of 0, 1, ... K tokens needs.
    ``draft_cost`` (c) is one draft token's. A drafter that does not draw (``per_round``) pays for
    K whatever comes of it.
    """

    contestant: str
    plain_seconds: float
    draft_cost: float
    nodes: list[int]
    pass_costs: list[float]
    by_depth: list[int]
    per_round: bool

    @property
    def draft_length(self) -> int:
        """K."""
        return len(self.by_depth) - 1

    def round_cost(self, depth: int) -> float:
        """Plain passes that a round with a draft of this depth takes.

        >>> costs = RoundCosts("x", 0.02, 0.1, [0, 4], [1.0, 1.5], [0, 1, 2, 3, 4], False)
        >>> [round(costs.round_cost(depth), 2) for depth in (0, 1, 4)]
        [1.0, 1.6, 1.9]
        """
        needed = zip(self.nodes, self.pass_costs, strict=True)
        passing = next(cost for num, cost in needed if num >= self.by_depth[depth])
        return passing + self.draft_cost * (self.draft_length if self.per_round else depth)

    def rounds_cost(self, answers: Sequence[Answer]) -> float:
        """Plain passes that all rounds of these answers take."""
        histogram = pooled_metrics(answers).draft_length_histogram
        return sum(num * self.round_cost(depth) for depth, num in enumerate(histogram))


def measure_rounds(variant: Variant, prompt: list[int], repeats: int) -> RoundCosts:
    """Time drafts and passes of every width after ``prompt``.

    Raises:
        ValueError: the variant decodes plainly.
    """
    program = variant.decoder.program
    drafter, nodes = program.drafter, list(program.passes)
    fed = sorted({0, *nodes})
    room: Settings = {"max_new_tokens": room_for(variant.decoder, prompt)}
    drafts, seconds = time_passes(variant.decoder, prompt, fed, repeats, room)
    depths = range(drafter.depth + 1)
    return RoundCosts(
        contestant=variant.name,
        plain_seconds=seconds[0] / NUM,
        draft_cost=drafts / seconds[0] / drafter.depth,
        nodes=nodes,
        pass_costs=[seconds[fed.index(num)] / seconds[0] for num in nodes],
        by_depth=[depth if program.is_chain or not depth else drafter.num_nodes for depth in depths]
        if len(nodes) > 1
        else [nodes[0]] * len(depths),
        per_round=not drafter.samples or program.policy is None,
    )


@dataclasses.dataclass(frozen=True)
class SpeedModel:
    """Predicted and measured speedup of a contestant at one temperature, of one row.

    ``achieved`` is over decoding alone, each call less its own prefill; ``achieved_call`` over
    whole calls. ``accepted_per_draft_cost`` is accepted draft tokens over what drafting cost, in
    plain passes.
    """

    contestant: str
    temperature: float | None
    acceptance_length: float
    round_cost: float
    predicted: float
    achieved: float
    predicted_call: float
    achieved_call: float
    accepted_per_draft_cost: float
    prefill_seconds: float

    @property
    def share(self) -> float:
        """Achieved over predicted, decoding alone."""
        return ratio(self.achieved, self.predicted)


def model_of(
    costs: RoundCosts, records: Sequence[Record], temperature: float | None
) -> SpeedModel | None:
    """Set the model beside the calls of one row at this temperature; None where there are none."""
    at = [r for r in records if r.batch == 1 and r.temperature == temperature]
    ours = [record for record in at if record.contestant == costs.contestant]
    plain = [record for record in at if record.contestant == PLAIN]
    if not ours:
        return None
    answers = answers_of(ours)
    metrics = pooled_metrics(answers)
    passes = costs.rounds_cost(answers)
    slow, fast = (_Times.of(some) for some in (plain, ours))
    one = costs.plain_seconds
    predicted_call = ratio(metrics.num_tokens, fast.prefill + passes * one)
    plain_call = ratio(slow.tokens, slow.prefill + slow.tokens * one)
    drafting = dataclasses.replace(costs, pass_costs=[0.0] * len(costs.nodes)).rounds_cost(answers)
    return SpeedModel(
        contestant=costs.contestant,
        temperature=temperature,
        acceptance_length=metrics.mean_acceptance_length,
        round_cost=ratio(passes, metrics.num_rounds),
        predicted=ratio(metrics.num_tokens, passes),
        achieved=ratio(fast.decoding_speed, slow.decoding_speed),
        predicted_call=ratio(predicted_call, plain_call),
        achieved_call=ratio(ratio(fast.tokens, fast.total), ratio(slow.tokens, slow.total)),
        accepted_per_draft_cost=ratio(metrics.num_accepted_tokens, drafting),
        prefill_seconds=fast.prefill,
    )


@dataclasses.dataclass(frozen=True)
class _Times:
    """Tokens of several calls, and their seconds: in all, and of prefill."""

    tokens: int
    total: float
    prefill: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Times:
        prefill = sum(record.prefill_seconds or 0.0 for record in records)
        total = sum(record.median for record in records)
        return cls(sum(record.num_tokens for record in records), total, prefill)

    @property
    def decoding_speed(self) -> float:
        """Tokens a second after the prefill."""
        return ratio(self.tokens, self.total - self.prefill)


@dataclasses.dataclass(frozen=True)
class PassLoad:
    """What a pass of the target asks of the machine: weights alone, of dense models.

    ``weight_bytes`` are read by every pass; ``operations`` are those of one position.
    """

    weight_bytes: int
    operations: int

    def intensity(self, width: int) -> float:
        """Operations a byte of a pass over ``width`` positions.

        >>> PassLoad(weight_bytes=400, operations=200).intensity(5)
        2.5
        """
        return self.operations * width / self.weight_bytes

    def bandwidth_share(self, plain_seconds: float, machine: MachineSpeed) -> float:
        """How much of the machine's bandwidth plain passes of so many seconds reach."""
        return ratio(self.weight_bytes, plain_seconds * machine.bandwidth)


def load_of(decoder: Decoder) -> PassLoad | None:
    """Weights that a pass reads; None for sparse models, whose passes read some experts.

    Tables that tokens and positions are looked up in are not read as a whole.
    """
    target: Any = decoder.program.target
    if getattr(target, "experts_per_position", None) is not None:
        return None
    weights = getattr(target, "weights", target)
    looked_up = {
        id(table) for name in ("embedding", "positions")
        if (table := getattr(weights, name, None)) is not None
    }  # fmt: skip
    leaves = [leaf for leaf in jax.tree.leaves(weights) if id(leaf) not in looked_up]
    return PassLoad(
        weight_bytes=sum(leaf.nbytes for leaf in leaves),
        operations=sum(2 * leaf.size for leaf in leaves),
    )
