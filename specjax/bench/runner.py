"""Running groups of turns through all contestants in turns, every program compiled beforehand."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from specjax import compiled
from specjax.bench.records import Answer, Record, first_difference
from specjax.bench.turns import Group, Turn, capacity_of, groups_of, padded
from specjax.bench.variants import PeerVariant, Variant
from specjax.call import Call
from specjax.metrics import Metrics

Clock = Callable[[], float]
"""Seconds since any moment."""

KindsOf = Callable[[list[int], list[int]], list[str]]
"""The kind of each token, of a prompt and its answer."""

WARM_TOKENS = 8
"""What a peer decodes to get warm."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of what a contestant made; a peer has no counters."""

    tokens: list[int]
    finish_reason: str
    drafted: list[bool]
    metrics: Metrics | None = None


@dataclasses.dataclass(frozen=True)
class Ready:
    """A contestant's call for one group, prepared.

    ``decode`` returns when its work is done; it is told how many tokens plain decoding has made of
    the first row, and ``read`` makes rows of what it returns. ``program`` tells what has to be
    compiled from what has not. ``coupled``: its draws are plain decoding's.
    """

    name: str
    program: Hashable
    decode: Callable[[int], Any]
    read: Callable[[Any], list[Row]]
    prefill: Callable[[], object] | None = None
    coupled: bool = False


@dataclasses.dataclass(frozen=True)
class Job:
    """One group, and the calls of all who take part, plain decoding first."""

    temperature: float | None
    group: Group
    calls: list[Ready]


def jobs_of(
    variants: Sequence[Variant],
    peers: Sequence[PeerVariant],
    turns: Sequence[Turn],
    temperature: float | None,
    batch: int,
    longest: int,
) -> list[Job]:
    """Prepare every call: ``turns`` in groups of ``batch``.

    Peers take part where one greedy answer is asked for; that is what all of them can do.

    Args:
        variants: plain decoding first.
        peers: others to compare with.
        turns: what is asked.
        temperature: as it was asked for.
        batch: rows a call.
        longest: tokens of the longest turn of the bench; see ``capacity_of``.
    """
    jobs = []
    for group in groups_of(turns, batch):
        capacity = capacity_of(max(turn.length for turn in group.turns), longest)
        calls = [ready_variant(variant, group, capacity) for variant in variants]
        if batch == 1 and _is_plain_greedy(group.turns[0]):
            calls += [ready_peer(peer, group) for peer in peers]
        jobs.append(Job(temperature, group, calls))
    return jobs


def _is_plain_greedy(turn: Turn) -> bool:
    """Whether a peer can be asked the same."""
    return turn.settings["temperature"] == 0 and "grammar" not in turn.settings


def ready_variant(variant: Variant, group: Group, capacity: int) -> Ready:
    """A decoder's call, with room for ``capacity`` tokens a row."""
    decoder = variant.decoder
    call = padded(
        decoder.prepare([turn.prompt for turn in group.turns], **group.settings), capacity
    )
    chunk = decoder.prefill_chunk
    # As Decoder.generate calls it, or jit would not find its program again.
    run = partial(compiled.generate, call.program, call.request, chunk=chunk, keep_state=False)
    begin = partial(compiled.begin, call.program, call.request, chunk=chunk)
    return Ready(
        variant.name,
        (variant.name, program_of(call)),
        decode=lambda _: jax.device_get(run()[0]),
        read=lambda output: _rows(decoder.collect(call, output)),
        prefill=lambda: jax.block_until_ready(begin()),
        coupled=call.program.verifier.coupled,
    )


def program_of(call: Call) -> Hashable:
    """The structure of a call's arrays, by which a program is compiled or found again."""
    leaves, structure = jax.tree.flatten((call.program, call.request))
    # A policy may hold plain numbers.
    types = (str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves)
    return structure, tuple(zip(map(np.shape, leaves), types, strict=True))


def _rows(result: Any) -> list[Row]:
    columns = (result.tokens, result.finish_reasons, result.drafted, result.row_metrics)
    return [Row(*row) for row in zip(*columns, strict=True)]


def ready_peer(variant: PeerVariant, group: Group) -> Ready:
    """A peer's call: as many tokens as plain decoding has made."""
    prompt, peer, length = group.turns[0].prompt, variant.peer, variant.draft_length
    return Ready(
        variant.name,
        variant.name,
        decode=lambda num: peer.generate(prompt, num, length),
        read=lambda tokens: [Row(tokens, "length", [])],
    )


def num_programs(jobs: Sequence[Job]) -> int:
    """How often ``warm`` calls ``tick``."""
    return len({call.program for job in jobs for call in job.calls})


def warm(jobs: Sequence[Job], tick: Callable[[], object] = lambda: None) -> None:
    """Compile every program, and run it once."""
    done: set[Hashable] = set()
    for call in (call for job in jobs for call in job.calls):
        if call.program not in done:
            done.add(call.program)
            call.decode(WARM_TOKENS)
            if call.prefill is not None:
                call.prefill()
            tick()


def run(
    job: Job,
    repeats: int,
    kinds_of: KindsOf | None = None,
    *,
    clock: Clock = time.perf_counter,
    tick: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Time all calls of a warm job in turns A B A B, then each one's prefill once.

    Args:
        job: what is decoded.
        repeats: turns.
        kinds_of: tells kinds of tokens apart; None counts none.
        clock: read before and after each call.
        tick: called after each call.
    """
    seconds: list[list[float]] = [[] for _ in job.calls]
    outputs: list[Any] = [None] * len(job.calls)
    num = WARM_TOKENS
    for _ in range(repeats):
        for index, call in enumerate(job.calls):
            begin = clock()
            outputs[index] = call.decode(num)
            seconds[index].append(clock() - begin)
            if index == 0:
                num = len(call.read(outputs[0])[0].tokens)
            tick()
    rows = [call.read(output) for call, output in zip(job.calls, outputs, strict=True)]
    return [
        Record(
            contestant=call.name,
            category=job.group.category,
            temperature=job.temperature,
            batch=len(job.group.turns),
            seconds=times,
            answers=answers(call, job.group, ours, rows[0], kinds_of),
            prefill_seconds=None if call.prefill is None else timed(call.prefill, clock),
        )
        for call, ours, times in zip(job.calls, rows, seconds, strict=True)
    ]


def timed(call: Callable[[], object], clock: Clock) -> float:
    """Seconds of one call."""
    begin = clock()
    call()
    return clock() - begin


def answers(
    call: Ready, group: Group, rows: list[Row], plain: list[Row], kinds_of: KindsOf | None
) -> list[Answer]:
    """The rows of a call with what was asked, against those of plain decoding."""
    num = len(rows) - group.num_repeated
    found = []
    for i, (turn, row) in enumerate(zip(group.turns, rows, strict=True)):
        heat = turn.settings["temperature"]
        answer = Answer(
            question=turn.question.id,
            turn=turn.number,
            temperature=heat,
            prompt_length=len(turn.prompt),
            tokens=row.tokens,
            finish_reason=row.finish_reason,
            must_agree=heat == 0 or call.coupled,
            differs_at=first_difference(row.tokens, plain[i].tokens),
            repeated=i >= num,
            drafted=row.drafted,
            kinds=count_kinds(turn.prompt, row, kinds_of),
        )
        found.append(answer if row.metrics is None else _counted(answer, row.metrics))
    return found


def _counted(answer: Answer, metrics: Metrics) -> Answer:
    return dataclasses.replace(
        answer,
        num_rounds=metrics.num_rounds,
        num_draft_tokens=metrics.num_draft_tokens,
        outcomes=metrics.outcomes.tolist(),
    )


def count_kinds(prompt: list[int], row: Row, kinds_of: KindsOf | None) -> dict[str, list[int]]:
    """For each kind of token: how many came from an accepted draft, and how many there are."""
    counts: dict[str, list[int]] = {}
    if kinds_of is not None and row.drafted:
        for kind, drafted in zip(kinds_of(prompt, row.tokens), row.drafted, strict=True):
            count = counts.setdefault(kind, [0, 0])
            count[0] += drafted
            count[1] += 1
    return counts
