"""Tools to test drafters, verifiers and targets, those of others included."""

from specjax.testing.table_lm import TableLM
from specjax.testing.tiny_lm import tiny_lm

__all__ = ["TableLM", "tiny_lm"]
