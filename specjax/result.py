"""What a call gives back."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.metrics import Metrics
from specjax.types import DEAD_END, OUT_OF_BUDGET, RUNNING, STOPPED

FINISH_REASONS = {
    RUNNING: "interrupted",
    STOPPED: "stop",
    OUT_OF_BUDGET: "length",
    DEAD_END: "dead_end",
}
"""``interrupted``: the call was left before the row's end; ``dead_end``: the processors (a
grammar, bans) allowed no token at all."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One entry a row; ``metrics`` pools the rows, ``row_metrics`` has each on its own.

    ``tokens`` include the stop token, or the token in which a stop string was complete; ``texts``
    end before the stop, and are None without a tokenizer. ``stopped_by`` is the stop: a token
    id, a string, or None. ``drafted`` marks the tokens that came from an accepted draft.

    ``seeds`` are those used: given again, they give the same tokens. ``samples`` number the rows
    of each prompt, which stand together. ``exact`` says whether the output keeps the target's
    law, ``rows_independent`` whether a row would have come out the same on its own.

    Log-probabilities in nats, None where not asked for: ``logprobs`` of each token under the
    model itself at temperature 1, ``processed_logprobs`` under the law after all processors (at
    temperature 0: after all but the choice of the likeliest), ``top_logprobs`` the model's
    likeliest tokens at the same place, likeliest first.

    ``suspended`` is for ``Decoder.resume``, None unless the call kept its state.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[str]
    stopped_by: list[int | str | None]
    drafted: list[list[bool]]
    seeds: list[int]
    samples: list[int]
    metrics: Metrics
    row_metrics: list[Metrics]
    exact: bool
    rows_independent: bool
    logprobs: list[list[float]] | None = None
    processed_logprobs: list[list[float]] | None = None
    top_logprobs: list[list[dict[int, float]]] | None = None
    suspended: Any = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one dispatch added to a row of a stream; the last of a row has a ``finish_reason``.

    Text that may be the beginning of a stop string is handed out once it is known not to be.
    ``logprobs`` are as in ``Result``.
    """

    row: int
    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: str | None
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None
