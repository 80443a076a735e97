"""The time between tokens, as one who reads a stream sees it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from specjax.bench.turns import Turn, padded
from specjax.bench.variants import Variant
from specjax.metrics import Metrics
from specjax.stream import Stream


@dataclasses.dataclass(frozen=True)
class Gaps:
    """Seconds between tokens: mean, median and 99th percentile; those of one round come together.

    ``bursts`` counts dispatches that brought 1, 2, ... tokens.
    """

    contestant: str
    mean: float
    p50: float
    p99: float
    bursts: dict[int, int]


def stream_gaps(variant: Variant, turns: Sequence[Turn], capacity: int) -> Gaps:
    """Stream the answers to ``turns``, a round a dispatch, after a warm dispatch.

    Rows have room for ``capacity`` tokens.
    """
    next(iter(_stream(variant, turns[0], capacity)))
    gaps: list[float] = []
    bursts: Counter[int] = Counter()
    for turn in turns:
        stream = _stream(variant, turn, capacity)
        bursts.update(len(piece.tokens) for piece in stream if piece.tokens)
        gaps += stream.result.metrics.gaps
    every = Metrics(0, 0, 0, np.zeros((1, 1), np.int32), gaps=tuple(gaps))
    return Gaps(variant.name, **every.time_between_tokens, bursts=dict(sorted(bursts.items())))


def _stream(variant: Variant, turn: Turn, capacity: int) -> Stream:
    decoder = variant.decoder
    call = padded(decoder.prepare([turn.prompt], **turn.settings), capacity)
    return Stream(call, rounds=1, chunk=decoder.prefill_chunk, tokenizer=decoder.tokenizer)
