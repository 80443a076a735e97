"""Timing several things against each other on a machine that others use too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def interleaved_medians(calls: Sequence[Callable[[], object]], repeats: int = 3) -> list[float]:
    """Median seconds of each call, run in turns (A B A B ...) after one warm run each.

    In turns, so that whatever slows the machine for a while slows all alike. A call must not
    return before its work is done.
    """
    for call in calls:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, seconds, strict=True):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in seconds]
