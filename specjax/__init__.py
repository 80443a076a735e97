"""Speculative decoding in JAX: exact, jitted end to end, for any target and any drafter."""

from specjax import drafters, loop, verify
from specjax.api import Decoder
from specjax.io import load
from specjax.metrics import Metrics
from specjax.result import Piece, Result

__all__ = ["Decoder", "Metrics", "Piece", "Result", "drafters", "load", "loop", "verify"]
__version__ = "0.1.0"
