"""What a call gives back."""

from __future__ import annotations

import dataclasses

from specjax.metrics import Metrics
from specjax.types import DEAD_END, OUT_OF_BUDGET, STOPPED

FINISH_REASONS = {STOPPED: "stop", OUT_OF_BUDGET: "length", DEAD_END: "dead_end"}
"""``dead_end``: the processors allowed no token at all."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One entry a row; ``metrics`` pools the rows, ``row_metrics`` has each on its own.

    ``tokens`` include the stop token, ``texts`` do not; ``texts`` is None without a tokenizer.
    ``drafted`` marks the tokens that came from an accepted draft. ``seeds`` are those used:
    given again, they give the same tokens. ``exact`` says whether the output keeps the target's
    law, ``rows_independent`` whether a row would have come out the same on its own.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[str]
    drafted: list[list[bool]]
    seeds: list[int]
    metrics: Metrics
    row_metrics: list[Metrics]
    exact: bool
    rows_independent: bool


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one round added to a row of a stream; the last of a row has a ``finish_reason``."""

    row: int
    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: str | None
