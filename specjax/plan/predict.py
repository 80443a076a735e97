"""How long passes take, from bytes and operations, and what speculation then brings.

Each part of a pass takes the longer of its reading and its arithmetic, at the chip's peaks (the
roofline of Williams et al. 2009); exchanges come on top. Real programs take longer; ratios suffer
less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from specjax.bench.costs import Costs
from specjax.drafters import DraftModel
from specjax.metrics import expected_acceptance_length
from specjax.plan.chips import Machine
from specjax.plan.costs import Cost, pass_costs
from specjax.plan.memory import drafter_shard, ring_scratch, target_shard
from specjax.plan.setup import Setup
from specjax.plan.shards import Shard

RATES = (0.5, 0.6, 0.7, 0.8, 0.9)
LENGTHS = tuple(range(1, 11))
MOST_ROWS = 4096
"""Rows up to which a batch is looked for where speculation no longer pays."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """What a pass, or several in a row, costs a device, and the seconds predicted for it.

    ``memory``, ``arithmetic`` and ``exchanges`` are the seconds in which nothing else is waited
    for.
    """

    cost: Cost = dataclasses.field(default_factory=Cost)
    memory: float = 0.0
    arithmetic: float = 0.0
    exchanges: float = 0.0

    @property
    def seconds(self) -> float:
        return self.memory + self.arithmetic + self.exchanges

    @property
    def bound(self) -> str:
        """What takes most of the time: memory, arithmetic or exchanges."""
        names = ("memory", "arithmetic", "exchanges")
        return max(names, key=lambda name: getattr(self, name))

    def __add__(self, other: Timed) -> Timed:
        return Timed(
            self.cost + other.cost,
            self.memory + other.memory,
            self.arithmetic + other.arithmetic,
            self.exchanges + other.exchanges,
        )

    def __mul__(self, times: int) -> Timed:
        each = (self.memory * times, self.arithmetic * times, self.exchanges * times)
        return Timed(self.cost * times, *each)


NOTHING = Timed()


def hops(machine: Machine, devices: int) -> float:
    """Hops of an all-reduce between so many devices: across the grid and back.

    A TPU's devices are taken as a square or a cube without wrap-around; NVIDIA's meet in a switch.

    >>> from specjax.plan.chips import find_machine
    >>> hops(find_machine("v5e:4x4"), 16), hops(find_machine("h200:8"), 8)
    (12.0, 2.0)
    """
    if devices == 1:
        return 0.0
    if not machine.is_tpu:
        return 2.0
    sides = max(sum(side > 1 for side in machine.shape), 1)
    return 2.0 * sides * (round(devices ** (1 / sides), 6) - 1)


def timed(parts: Iterable[Cost], machine: Machine, dtype: str, devices: int = 1) -> Timed:
    """Time parts that run one after the other, on devices that cut weights ``devices`` ways."""
    chip, total = machine.chip, NOTHING
    for part in parts:
        memory, arithmetic = part.bytes / chip.bandwidth, part.operations / chip.peak(dtype)
        wait = part.exchanges * hops(machine, devices) * chip.hop_seconds
        total += Timed(
            part,
            memory if memory >= arithmetic else 0.0,
            arithmetic if arithmetic > memory else 0.0,
            part.sent / chip.link_bandwidth + wait,
        )
    return total


def target_pass(setup: Setup, width: int, filled: int | None = None, laws=None) -> Timed:
    """A pass of the target over ``width`` positions of each row, by default of a full context."""
    return _pass(setup, target_shard(setup), ring_scratch(setup)[0], width, filled, laws)


def draft_pass(setup: Setup, width: int = 1, filled: int | None = None, laws: int = 1) -> Timed:
    """A pass of the draft model; nothing where there is none."""
    shard = drafter_shard(setup)
    if shard is None:
        return NOTHING
    return _pass(setup, shard, ring_scratch(setup)[1], width, filled, laws)


def _pass(setup: Setup, shard: Shard, ring: int, width: int, filled: int | None, laws) -> Timed:
    filled = setup.context if filled is None else filled
    parts = pass_costs(shard, setup.batch, width, filled, slots=setup.slots, ring=ring, laws=laws)
    return timed(parts, setup.machine, setup.dtype, shard.num_model)


def drafting(setup: Setup, draft_length: int, filled: int | None = None) -> Timed:
    """All passes of a draft: the first takes two positions, since the last draft was never fed."""
    if draft_length == 0:
        return NOTHING
    later = draft_pass(setup, filled=filled) * (draft_length - 1)
    return draft_pass(setup, width=2, filled=filled) + later


def prefill(setup: Setup) -> Timed:
    """The target's passes over all of the prompt but its newest token."""
    end, total = setup.prompt_length - 1, NOTHING
    for first in range(0, end, setup.chunk):
        total += target_pass(setup, setup.chunk, min(first + setup.chunk, end), laws=0)
    return total


def catching_up(setup: Setup) -> Timed:
    """The draft model's passes over the prompt, before its first draft."""
    step, total = DraftModel.catch_up, NOTHING
    for first in range(0, max(setup.prompt_length - 2, 0), step):
        total += draft_pass(setup, step, min(first + step, setup.prompt_length), laws=0)
    return total


def first_token(setup: Setup) -> float:
    """Seconds to the first new token: prefill, catching up, and one round."""
    filled = setup.prompt_length
    drafts = drafting(setup, setup.draft_length, filled)
    check = target_pass(setup, setup.draft_length + 1, filled)
    return (prefill(setup) + catching_up(setup) + drafts + check).seconds


def round_costs(setup: Setup, lengths: Sequence[int] = LENGTHS) -> list[Costs]:
    """c and v for each draft length, in plain steps."""
    plain, first, later = target_pass(setup, 1), draft_pass(setup, 2), draft_pass(setup)
    return [
        Costs(
            length,
            (first.seconds + (length - 1) * later.seconds) / length / plain.seconds,
            target_pass(setup, length + 1).seconds / plain.seconds,
        )
        for length in lengths
    ]


def ceiling(rate: float) -> float:
    """1 / (1 - rate): what infinitely many free drafts would bring.

    >>> round(ceiling(0.8), 6)
    5.0
    """
    return 1 / (1 - rate)


@dataclasses.dataclass(frozen=True)
class Gain:
    """What speculation brings where each draft token is accepted with probability ``rate``.

    ``speedups`` are for each of ``LENGTHS``, over plain decoding. ``best_length`` is 0 where none
    pays. ``pays_from`` is the fewest rows for which one does, None where there are none up to
    ``MOST_ROWS``; ``stops_at`` the fewest beyond that for which none does.
    """

    rate: float
    speedups: tuple[float, ...]
    pays_from: int | None = None
    stops_at: int | None = None

    @property
    def best(self) -> float:
        return max(1.0, *self.speedups)

    @property
    def best_length(self) -> int:
        index = self.speedups.index(max(self.speedups))
        return LENGTHS[index] if self.speedups[index] > 1 else 0


def gains(setup: Setup, rates: Sequence[float] = RATES) -> list[Gain]:
    """What speculation brings, for each acceptance rate."""
    found = Batches(setup)
    here = round_costs(setup)
    return [Gain(rate, speedups(here, rate), *found.paying(rate)) for rate in rates]


def speedups(costs: Sequence[Costs], rate: float) -> tuple[float, ...]:
    """E / (K c + v) for each K (``specjax.metrics.speedup``), E of a constant acceptance rate."""
    return tuple(
        one.speedup(expected_acceptance_length([rate] * one.draft_length)) for one in costs
    )


class Batches:
    """What speculation brings for other numbers of rows, each costed once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.costs: dict[int, list[Costs]] = {}

    def best(self, rows: int, rate: float) -> float:
        """The largest speedup over all draft lengths, below 1 where none pays."""
        if rows not in self.costs:
            self.costs[rows] = round_costs(self.setup.but(batch=rows))
        return max(speedups(self.costs[rows], rate))

    def doubled(self) -> list[int]:
        """Numbers of rows to look at: one along data, and doubled up to ``MOST_ROWS``."""
        data = self.setup.mesh_shape[0]
        return [data * 2**i for i in range(int(math.log2(max(MOST_ROWS // data, 1))) + 1)]

    def paying(self, rate: float) -> tuple[int | None, int | None]:
        """The fewest rows for which a draft length pays, and the fewest beyond for which none does.

        Few rows may not pay where experts are sparse, many where arithmetic takes the time.
        """
        first = self._change(rate, True, 0)
        return first, None if first is None else self._change(rate, False, first)

    def _change(self, rate: float, pays: bool, low: int) -> int | None:
        """The fewest rows above ``low`` that do pay or do not, found between two doublings."""
        data = self.setup.mesh_shape[0]
        for high in self.doubled():
            if high > low and (self.best(high, rate) > 1) == pays:
                break
            low = max(low, high)
        else:
            return None
        while high - low > data:
            middle = (low + high) // 2 // data * data
            if (self.best(middle, rate) > 1) == pays:
                high = middle
            else:
                low = middle
        return high

    def curve(self, rates: Sequence[float]) -> Mapping[float, list[float]]:
        """The best speedup, or 1, for each rate and each of ``doubled``."""
        return {
            rate: [max(1.0, self.best(rows, rate)) for rows in self.doubled()] for rate in rates
        }
