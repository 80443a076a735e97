"""Measuring, always as ratios within one run: machines differ, and so do their moods."""

from specjax.bench.adapt import adapt
from specjax.bench.comparison import Comparison, compare
from specjax.bench.costs import Costs, measure_costs
from specjax.bench.timing import interleaved_medians

__all__ = ["Comparison", "Costs", "adapt", "compare", "interleaved_medians", "measure_costs"]
