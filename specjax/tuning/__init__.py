"""Which drafter, draft length, tree and widths pay for a target on this machine."""

from specjax.tuning.autotune import autotune
from specjax.tuning.trials import Trial
from specjax.tuning.tuned import Tuned

__all__ = ["Trial", "Tuned", "autotune"]
