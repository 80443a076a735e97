"""A whole bench: everything that is measured, and what was measured with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from specjax.bench.costs import middling
from specjax.bench.kinds import kinds_of
from specjax.bench.machine import MachineSpeed, measure_machine
from specjax.bench.records import Record, Summary, jsonable, summarize
from specjax.bench.runner import Clock, Job, KindsOf, jobs_of, num_programs, run, warm
from specjax.bench.speed import PassLoad, RoundCosts, SpeedModel, load_of, measure_rounds, model_of
from specjax.bench.streaming import Gaps, stream_gaps
from specjax.bench.turns import Turn, capacity_of
from specjax.bench.variants import PeerVariant, Variant

STREAMED = 3
"""Prompts that are streamed for the time between tokens."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """All records, and the times measured beside them.

    ``costs`` and ``models`` are there where one row was decoded at a time.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    contestants: list[dict[str, Any]]
    records: list[Record]
    gaps: list[Gaps]
    costs: list[RoundCosts]
    machine: MachineSpeed
    load: PassLoad | None

    @property
    def summaries(self) -> list[Summary]:
        """Pooled by temperature, batch, category and contestant."""
        return summarize(self.records)

    @property
    def models(self) -> list[SpeedModel]:
        """The model of the speed for every contestant and temperature."""
        temperatures = dict.fromkeys(record.temperature for record in self.records)
        found = [model_of(c, self.records, heat) for heat in temperatures for c in self.costs]
        return [model for model in found if model is not None]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: NaN becomes None."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts["ridge"] = self.machine.ridge
        models = [dataclasses.asdict(m) | {"share": m.share} for m in self.models]
        return jsonable({**parts, "summaries": self.summaries, "models": models})


@dataclasses.dataclass(frozen=True)
class Bench:
    """What to measure. ``turns`` are asked at each temperature; ``variants`` begin with plain."""

    variants: Sequence[Variant]
    peers: Sequence[PeerVariant]
    turns: dict[float | None, list[Turn]]
    batches: Sequence[int]
    repeats: int
    clock: Clock = time.perf_counter
    quiet: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer."""
        return max(turn.length for turns in self.turns.values() for turn in turns)

    def jobs(self) -> list[Job]:
        """Every group of turns at every temperature and batch."""
        return [
            job
            for temperature, turns in self.turns.items()
            for batch in self.batches
            for job in jobs_of(self.variants, self.peers, turns, temperature, batch, self.longest)
        ]

    def run(self) -> list[Record]:
        """Compile everything, then time all jobs."""
        jobs = self.jobs()
        with self._bar("compiling", num_programs(jobs)) as bar:
            warm(jobs, tick=bar.update)
        kinds = kinds_of_tokens(self.variants[0].decoder.tokenizer)
        found: list[Record] = []
        calls = self.repeats * sum(len(job.calls) for job in jobs)
        with self._bar("measuring", calls) as bar:
            for job in jobs:
                found += run(job, self.repeats, kinds, clock=self.clock, tick=bar.update)
        return found

    def gaps(self) -> list[Gaps]:
        """Stream a few of the prompts with every variant."""
        turns = next(iter(self.turns.values()))
        some = turns[:: -(-len(turns) // STREAMED)]
        capacity = capacity_of(max(turn.length for turn in some), self.longest)
        variants = self._each("streaming", self.variants)
        return [stream_gaps(variant, some, capacity) for variant in variants]

    def costs(self) -> list[RoundCosts]:
        """What rounds cost every variant that drafts, where one row at a time is decoded."""
        drafting = self.variants[1:] if 1 in self.batches else []
        prompt = middling([turn.prompt for turn in next(iter(self.turns.values()))])
        timed = partial(measure_rounds, prompt=prompt, repeats=self.repeats)
        return [timed(variant) for variant in self._each("timing passes", drafting)]

    def _bar(self, name: str, total: int) -> tqdm:
        return tqdm(desc=name, total=total, disable=self.quiet, leave=False)

    def _each(self, name: str, variants: Sequence[Variant]) -> Any:
        return tqdm(variants, desc=name, disable=self.quiet, leave=False)


def measure(bench: Bench, environment: dict[str, Any], settings: dict[str, Any]) -> Measured:
    """Measure everything: the calls first, then what explains them."""
    decoder = bench.variants[0].decoder
    dtype = getattr(decoder.program.target, "dtype", "float32")
    peers = [{"name": peer.name, "draft_length": peer.draft_length} for peer in bench.peers]
    return Measured(
        environment=environment,
        settings=settings,
        contestants=[*(variant.to_dict() for variant in bench.variants), *peers],
        records=bench.run(),
        gaps=bench.gaps(),
        costs=bench.costs(),
        machine=measure_machine(dtype, clock=bench.clock),
        load=load_of(decoder),
    )


def kinds_of_tokens(tokenizer: Any) -> KindsOf | None:
    """Tells kinds of tokens apart by the texts of prompt and answer; None without a tokenizer."""
    if tokenizer is None:
        return None

    def kinds(prompt: list[int], tokens: list[int]) -> list[str]:
        pieces = [tokenizer.token_bytes[token].decode("utf-8", "replace") for token in tokens]
        return kinds_of(pieces, tokenizer.decode(prompt))

    return kinds
