"""What a bench keeps: every call with its times, and what is pooled from them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specjax.bench.variants import PLAIN
from specjax.metrics import Metrics, ratio

ALL = "all"
"""The category of all answers together."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """One row of a call: what was asked, and what came out.

    ``outcomes[d][a]`` counts rounds whose draft was d deep and of which a tokens were kept; None
    for a peer. ``differs_at`` is the first token unlike plain decoding's, None where there is
    none. ``kinds`` counts, for each kind of token, those from an accepted draft and all. A
    ``repeated`` row only fills a batch.
    """

    question: str
    turn: int
    temperature: float
    prompt_length: int
    tokens: list[int]
    finish_reason: str
    must_agree: bool
    differs_at: int | None = None
    repeated: bool = False
    drafted: list[bool] = dataclasses.field(default_factory=list)
    kinds: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    num_rounds: int = 0
    num_draft_tokens: int = 0
    outcomes: list[list[int]] | None = None


@dataclasses.dataclass(frozen=True)
class Record:
    """One call of one contestant; ``seconds`` are those of every repeat, prefill included.

    ``temperature`` is the one asked for, None for each question's own.
    """

    contestant: str
    category: str
    temperature: float | None
    batch: int
    seconds: list[float]
    answers: list[Answer]
    prefill_seconds: float | None = None

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    @property
    def num_tokens(self) -> int:
        """Tokens that the call made, those of repeated rows included."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Question and turn of each row."""
        return [(answer.question, answer.turn) for answer in self.answers]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Read what ``dataclasses.asdict`` wrote."""
        answers = [Answer(**answer) for answer in values["answers"]]
        return cls(**{**values, "answers": answers})


@dataclasses.dataclass(frozen=True)
class Summary:
    """A contestant's calls of one category, temperature and batch, pooled.

    Speeds are tokens over median seconds of all calls, prefill and repeated rows included;
    ``speedup`` is over plain decoding's, and ``speedup_range`` the lowest and highest of the
    repeats, each against plain decoding in the same turn. All else counts each answer once.
    A ratio over nothing is NaN. ``num_differing`` counts answers unlike plain decoding's among
    the ``num_compared`` that have to be equal.
    """

    contestant: str
    category: str
    temperature: float | None
    batch: int
    num_answers: int
    num_tokens: int
    tokens_per_second: float
    speedup: float
    speedup_range: tuple[float, float]
    tokens_per_pass: float
    draft_acceptance_rate: float
    acceptance_rate_at: list[float]
    num_compared: int
    num_differing: int


def answers_of(records: Iterable[Record]) -> list[Answer]:
    """Every answer once."""
    return [a for record in records for a in record.answers if not a.repeated]


def pooled_metrics(answers: Sequence[Answer]) -> Metrics:
    """The counters of several answers of one contestant together."""
    outcomes = [np.asarray(a.outcomes) for a in answers if a.outcomes is not None]
    return Metrics(
        num_rounds=sum(answer.num_rounds for answer in answers),
        num_draft_tokens=sum(answer.num_draft_tokens for answer in answers),
        num_clipped_tokens=0,
        outcomes=np.sum(outcomes, axis=0) if outcomes else np.zeros((1, 1), np.int32),
    )


def speed(records: Sequence[Record], repeat: int | None = None) -> float:
    """Tokens a second of all calls, by median seconds or by those of one repeat."""
    seconds = sum(r.median if repeat is None else r.seconds[repeat] for r in records)
    return ratio(sum(record.num_tokens for record in records), seconds)


def summarize(records: Sequence[Record]) -> list[Summary]:
    """Pool by temperature, batch, category and contestant; all categories together come first."""
    found = []
    for temperature, batch in dict.fromkeys((r.temperature, r.batch) for r in records):
        some = [r for r in records if (r.temperature, r.batch) == (temperature, batch)]
        for category in (ALL, *dict.fromkeys(r.category for r in some)):
            them = [r for r in some if category in (ALL, r.category)]
            for name in dict.fromkeys(record.contestant for record in them):
                found.append(_summary(name, category, them))
    return found


def _summary(name: str, category: str, records: Sequence[Record]) -> Summary:
    """One contestant's, among the records of a category."""
    ours = [record for record in records if record.contestant == name]
    asked = [record.asked for record in ours]  # a peer need not be asked all
    plain = [r for r in records if r.contestant == PLAIN and r.asked in asked]
    answers = answers_of(ours)
    metrics = pooled_metrics(answers)
    turns = range(len(ours[0].seconds))
    by_turn = [ratio(speed(ours, turn), speed(plain, turn)) for turn in turns]
    compared = [answer for answer in answers if answer.must_agree]
    return Summary(
        contestant=name,
        category=category,
        temperature=ours[0].temperature,
        batch=ours[0].batch,
        num_answers=len(answers),
        num_tokens=sum(len(answer.tokens) for answer in answers),
        tokens_per_second=speed(ours),
        speedup=ratio(speed(ours), speed(plain)),
        speedup_range=(min(by_turn), max(by_turn)),
        tokens_per_pass=metrics.mean_acceptance_length,
        draft_acceptance_rate=metrics.draft_acceptance_rate,
        acceptance_rate_at=metrics.acceptance_rate_at,
        num_compared=len(compared),
        num_differing=sum(answer.differs_at is not None for answer in compared),
    )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Where two lists of tokens part, None where they are equal.

    >>> first_difference([1, 2, 3], [1, 2]), first_difference([1], [1])
    (2, None)
    """
    pairs = enumerate(zip(ours, theirs, strict=False))
    shorter = min(len(ours), len(theirs))
    parted = next((i for i, (a, b) in pairs if a != b), shorter)
    return None if parted == len(ours) == len(theirs) else parted


def jsonable(value: Any) -> Any:
    """A value as JSON knows it: dataclasses become objects, numbers that are none become null.

    >>> jsonable({"a": (math.nan, 1.5)})
    {'a': [None, 1.5]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return jsonable(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
