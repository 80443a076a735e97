"""A plan as a picture: speedup by draft length, and by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specjax.plan import predict
from specjax.plan.report import Plan

NEEDED = 'plotting needs matplotlib: pip install "specjax[plan]"'


def draw(plan: Plan, path: str | Path) -> None:
    """Write a picture, a PNG.

    Raises:
        ValueError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"--png: {NEEDED} ({error})") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _by_length(left, plan)
    _by_batch(right, plan)
    figure.savefig(path, format="png", dpi=120)


def _by_length(axes: Any, plan: Plan) -> None:
    for gain in plan.gains:
        axes.plot(predict.LENGTHS, gain.speedups, marker="o", label=f"acceptance {gain.rate}")
    axes.set(xlabel="draft length K", title=f"batch {plan.setup.batch}", ylabel="speedup")
    _finish(axes)


def _by_batch(axes: Any, plan: Plan) -> None:
    batches = predict.Batches(plan.setup)
    rows = batches.doubled()
    for rate, best in batches.curve(predict.RATES).items():
        axes.plot(rows, best, marker=".", label=f"acceptance {rate}")
    largest = plan.largest["speculative"]
    if largest:
        axes.axvline(largest, color="grey", linestyle=":", label="largest that fits")
    axes.set(xlabel="batch", title="the best K for each batch")
    axes.set_xscale("log", base=2)
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
