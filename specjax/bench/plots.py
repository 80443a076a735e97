"""A bench as pictures: one PNG each, and one colour a contestant in all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specjax.bench.kinds import KINDS
from specjax.bench.measured import Measured
from specjax.bench.records import ALL, Answer, Summary, answers_of
from specjax.bench.report import condition
from specjax.metrics import ratio

COLOURS = ("#999999", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind can tell apart; plain decoding is grey."""

HATCHES = ("", "//", "..", "xx")
"""For more contestants than colours."""

BIN = 16
"""Output positions that are counted together."""


def require_matplotlib() -> tuple[Any, Any]:
    """The two classes that draw without a screen.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        needed = 'needs matplotlib: pip install "specjax[bench]"'
        raise ValueError(f"--png: {needed} ({error})") from None
    return Figure, FigureCanvasAgg


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Write every picture that there is something for, and say where.

    Raises:
        ValueError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    picture, found = Pictures(measured), []
    for name, plot in picture.plots().items():
        figure_class, canvas_class = require_matplotlib()
        figure = figure_class(figsize=(10, 5), layout="constrained")
        canvas_class(figure)
        plot(figure.subplots())
        found.append(folder / f"{name}.png")
        figure.savefig(found[-1], format="png", dpi=120)
    return found


class Pictures:
    """What is drawn, and of which calls: all but sweeps show the first temperature and batch."""

    def __init__(self, measured: Measured) -> None:
        self.summaries = measured.summaries
        first = self.summaries[0]
        self.at = (first.temperature, first.batch)
        self.names = list(dict.fromkeys(summary.contestant for summary in self.summaries))
        self.records = [r for r in measured.records if (r.temperature, r.batch) == self.at]

    def plots(self) -> dict[str, Callable[[Any], None]]:
        """Every picture by its name; each draws on one pair of axes."""
        found: dict[str, Callable[[Any], None]] = {
            "speedup-by-category": self.speedup_by_category,
            "tokens-per-pass-by-category": self.tokens_per_pass_by_category,
        }
        if self.drafting():
            found["acceptance-by-draft-position"] = self.acceptance_by_position
            found["drafted-by-output-position"] = self.drafted_by_output_position
        if any(answer.kinds for name in self.drafting() for answer in self.answers(name)):
            found["drafted-by-kind"] = self.drafted_by_kind
        if len(self.sweep("batch")) > 1:
            found["speed-by-batch"] = self.speed_by_batch
        if len(self.sweep("temperature")) > 1:
            found["speed-by-temperature"] = self.speed_by_temperature
        return found

    def style(self, name: str) -> dict[str, Any]:
        """Colour and hatch of a contestant, the same in every picture."""
        index = self.names.index(name)
        cycle, colour = divmod(index, len(COLOURS))
        return {"color": COLOURS[colour], "hatch": HATCHES[cycle % len(HATCHES)]}

    def answers(self, name: str) -> list[Answer]:
        """A contestant's answers."""
        return answers_of(record for record in self.records if record.contestant == name)

    def drafting(self) -> list[str]:
        """Contestants with drafts."""
        return [
            summary.contestant
            for summary in self._at()
            if summary.category == ALL and summary.acceptance_rate_at
        ]

    def sweep(self, name: str) -> list[float]:
        """The values of batch or temperature that were given."""
        values = {getattr(summary, name) for summary in self.summaries}
        return sorted(value for value in values if value is not None)

    def _at(self) -> list[Summary]:
        return [s for s in self.summaries if (s.temperature, s.batch) == self.at]

    def speedup_by_category(self, axes: Any) -> None:
        """Tokens a second over plain decoding's, with the range of the turns."""
        self._by_category(axes, "speedup", self.names, ranges=True)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(ylabel="tokens/s over plain decoding", title=condition(*self.at))

    def tokens_per_pass_by_category(self, axes: Any) -> None:
        """E by category."""
        names = [s.contestant for s in self._at() if s.category == ALL and s.tokens_per_pass > 0]
        self._by_category(axes, "tokens_per_pass", names)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(ylabel="tokens a target pass", title=condition(*self.at))

    def _by_category(self, axes: Any, value: str, names: list[str], ranges: bool = False) -> None:
        categories = list(dict.fromkeys(s.category for s in self._at()))
        cells = {(s.contestant, s.category): s for s in self._at()}
        heights = {}
        for name in names:
            known = [cells.get((name, category)) for category in categories]
            numbers = [np.nan if one is None else getattr(one, value) for one in known]
            lows, highs = zip(*(_range(one) for one in known), strict=True)
            beyond = np.clip([np.subtract(numbers, lows), np.subtract(highs, numbers)], 0, None)
            heights[name] = (numbers, beyond if ranges else None)
        self._bars(axes, categories, heights)

    def _bars(self, axes: Any, groups: Sequence[str], heights: dict[str, tuple]) -> None:
        """Bars side by side in each group."""
        width = 0.8 / max(len(heights), 1)
        places = np.arange(len(groups))
        for index, (name, (numbers, errors)) in enumerate(heights.items()):
            at = places + (index - (len(heights) - 1) / 2) * width
            axes.bar(at, numbers, width, yerr=errors, label=name, **self.style(name))
        axes.set_xticks(places, groups, rotation=30 if len(groups) > 4 else 0)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small")

    def acceptance_by_position(self, axes: Any) -> None:
        """How often each draft position was accepted, given that it was judged."""
        for summary in self._at():
            if summary.category == ALL and summary.contestant in self.drafting():
                rates = summary.acceptance_rate_at
                self._line(axes, summary.contestant, range(1, len(rates) + 1), rates)
        axes.set(xlabel="draft position", ylabel="accepted, of those judged", ylim=(0, 1.02))
        _finish(axes, condition(*self.at))

    def drafted_by_output_position(self, axes: Any) -> None:
        """The share of tokens from an accepted draft, along the answer."""
        for name in self.drafting():
            shares = shares_by_position(self.answers(name))
            self._line(axes, name, [BIN * (i + 0.5) for i in range(len(shares))], shares)
        axes.set(xlabel=f"output position, {BIN} together", ylim=(0, 1.02))
        axes.set(ylabel="share of tokens from accepted drafts")
        _finish(axes, condition(*self.at))

    def drafted_by_kind(self, axes: Any) -> None:
        """The share of tokens from an accepted draft, by kind of token."""
        heights = {name: (shares_by_kind(self.answers(name)), None) for name in self.drafting()}
        self._bars(axes, KINDS, heights)
        axes.set(ylabel="share of tokens from accepted drafts", title=condition(*self.at))

    def speed_by_batch(self, axes: Any) -> None:
        """Tokens a second over plain decoding's of the same batch."""
        self._swept(axes, "batch", "temperature", self.at[0])
        axes.set_xscale("log", base=2)

    def speed_by_temperature(self, axes: Any) -> None:
        """Tokens a second over plain decoding's at the same temperature."""
        self._swept(axes, "temperature", "batch", self.at[1])

    def _swept(self, axes: Any, along: str, fixed: str, value: float | None) -> None:
        for name in self.names:
            some = [
                (getattr(s, along), s.speedup)
                for s in self.summaries
                if (s.contestant, s.category, getattr(s, fixed)) == (name, ALL, value)
            ]
            if some:  # peers are not in all
                self._line(axes, name, *zip(*sorted(some), strict=True))
        axes.set(xlabel=along, ylabel="tokens/s over plain decoding")
        _finish(axes, "all categories" if value is None else f"{fixed} {value:g}")

    def _line(self, axes: Any, name: str, x: Sequence[float], y: Sequence[float]) -> None:
        axes.plot(x, y, marker="o", label=name, color=self.style(name)["color"])


def _range(summary: Summary | None) -> tuple[float, float]:
    return (np.nan, np.nan) if summary is None else summary.speedup_range


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def shares_by_position(answers: Sequence[Answer]) -> list[float]:
    """For each ``BIN`` output positions: the share of tokens that came from an accepted draft."""
    longest = max(len(answer.drafted) for answer in answers)
    counts = np.zeros((-(-longest // BIN), 2))
    for answer in answers:
        for place, drafted in enumerate(answer.drafted):
            counts[place // BIN] += (drafted, 1)
    return [ratio(*count) for count in counts]


def shares_by_kind(answers: Sequence[Answer]) -> list[float]:
    """For each of ``KINDS``: the share of tokens that came from an accepted draft."""
    counts = {kind: np.zeros(2) for kind in KINDS}
    for answer in answers:
        for kind, count in answer.kinds.items():
            counts[kind] += count
    return [ratio(*count) for count in counts.values()]
