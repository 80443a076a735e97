"""Tools to test drafters, verifiers and targets, those of others included."""

from specjax.testing.drafter_checks import check_drafter
from specjax.testing.table_lm import TableLM
from specjax.testing.target_checks import check_target
from specjax.testing.tiny_lm import tiny_lm

__all__ = ["TableLM", "check_drafter", "check_target", "tiny_lm"]
