"""A bench as text: tables by category, then the model of the speed and the time between tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from specjax.bench.measured import Measured
from specjax.bench.records import Summary
from specjax.bench.speed import RoundCosts, SpeedModel
from specjax.bench.streaming import Gaps
from specjax.columns import table


def lines(measured: Measured) -> list[str]:
    """The whole report."""
    parts = [_where(measured), *_tables(measured.summaries)]
    if measured.models:
        parts.append(_models(measured.models))
        parts.append(_costs(measured.costs))
    parts += [_machine(measured), _gaps(measured.gaps)]
    return [line for part in parts for line in (*part, "")][:-1]


def number(value: float, digits: int = 2, suffix: str = "") -> str:
    """A number, or a dash where there is none.

    >>> number(1.234), number(math.nan), number(0.5, 0, " %")
    ('1.23', '-', '0 %')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}{suffix}"


def condition(temperature: float | None, batch: int) -> str:
    """Temperature and batch in words.

    >>> condition(0.0, 1), condition(None, 8)
    ('temperature 0, batch 1', "each question's own temperature, batch 8")
    """
    heat = "each question's own temperature" if temperature is None else ""
    return f"{heat or f'temperature {temperature:g}'}, batch {batch}"


def _where(measured: Measured) -> list[str]:
    found, settings = measured.environment, measured.settings
    versions = (f"{name} {found[name]}" for name in ("specjax", "jax", "jaxlib", "python"))
    return [
        f"{settings['target']} on {found['num_devices']} x {found['device_kind']}, "
        f"{found['num_cores']} cores; {', '.join(versions)}",
        f"medians of {settings['repeats']} turns; prefill is in all speeds; "
        "in brackets the lowest and highest turn",
    ]


def _tables(summaries: Sequence[Summary]) -> Iterable[list[str]]:
    """A table for each temperature and batch, all categories in it."""
    for at in dict.fromkeys((summary.temperature, summary.batch) for summary in summaries):
        some = [summary for summary in summaries if (summary.temperature, summary.batch) == at]
        head = [condition(*at), "answers", "tokens/s", "over plain", "", "tokens a pass"]
        rows = [[*head, "accepted", "differ"]]
        for category in dict.fromkeys(summary.category for summary in some):
            rows.append([category, *[""] * 7])
            rows += [_row(summary) for summary in some if summary.category == category]
        yield table(rows)


def _row(summary: Summary) -> list[str]:
    low, high = summary.speedup_range
    compared = summary.num_compared
    return [
        f"  {summary.contestant}",
        str(summary.num_answers),
        number(summary.tokens_per_second, 1),
        number(summary.speedup),
        f"({number(low)}-{number(high)})",
        number(summary.tokens_per_pass),
        number(100 * summary.draft_acceptance_rate, 0, " %"),
        f"{summary.num_differing} of {compared}" if compared else "-",
    ]


def _models(models: Sequence[SpeedModel]) -> list[str]:
    """Prediction beside measurement."""
    head = ["tokens a round E", "costs K c + v", "predicted", "achieved", "share"]
    rows = [["one row", *head, "whole calls: predicted", "achieved", "accepted/draft cost"]]
    for model in models:
        heat = "own" if model.temperature is None else f"{model.temperature:g}"
        rows.append(
            [
                f"  {model.contestant}, temperature {heat}",
                number(model.acceptance_length),
                number(model.round_cost),
                number(model.predicted),
                number(model.achieved),
                number(model.share),
                number(model.predicted_call),
                number(model.achieved_call),
                number(model.accepted_per_draft_cost, 1),
            ]
        )
    return ["speedup over plain decoding, without prefill, as E / (K c + v) has it", *table(rows)]


def _costs(costs: Sequence[RoundCosts]) -> list[str]:
    """c, and v of every width."""
    found = ["costs in plain passes"]
    for one in costs:
        passes = ", ".join(
            f"{cost:.2f} over {num + 1} positions"
            for num, cost in zip(one.nodes, one.pass_costs, strict=True)
        )
        found.append(
            f"  {one.contestant}: c = {one.draft_cost:.3f} a draft token, v = {passes}; "
            f"a plain pass took {1e3 * one.plain_seconds:.1f} ms"
        )
    return found


def _machine(measured: Measured) -> list[str]:
    machine, load = measured.machine, measured.load
    found = [
        f"this machine reads {machine.bandwidth / 1e9:.1f} GB/s and does "
        f"{machine.operations / 1e9:.0f} Gop/s in products, measured: "
        f"its ridge is at {machine.ridge:.1f} op/byte"
    ]
    if load is None:
        return found
    widths = sorted({1, *(num + 1 for one in measured.costs for num in one.nodes)})
    loads = ", ".join(f"{load.intensity(width):.1f} over {width}" for width in widths)
    found.append(
        f"a pass reads {load.weight_bytes / 1e6:.1f} MB of weights; op/byte by positions: {loads}"
    )
    if measured.costs:
        share = load.bandwidth_share(measured.costs[0].plain_seconds, machine)
        found.append(f"plain decoding reaches {share:.0%} of the bandwidth")
    return found


def _gaps(gaps: Sequence[Gaps]) -> list[str]:
    rows = [["milliseconds between tokens, streamed", "mean", "p50", "p99", "tokens at a time"]]
    for one in gaps:
        times = (number(1e3 * seconds, 1) for seconds in (one.mean, one.p50, one.p99))
        bursts = ", ".join(f"{num} x {size}" for size, num in one.bursts.items())
        rows.append([f"  {one.contestant}", *times, bursts])
    return table(rows)
