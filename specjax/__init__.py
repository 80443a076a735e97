"""Speculative decoding in JAX: exact, jitted end to end, for any target and any drafter."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specjax import (
        adapters,
        bench,
        check,
        distributed,
        drafters,
        grammar,
        io,
        loop,
        sharding,
        stopping,
        testing,
        verify,
    )
    from specjax.adaptive import Adaptive
    from specjax.api import Decoder
    from specjax.io import load, save
    from specjax.metrics import Metrics
    from specjax.models import quantize, shard
    from specjax.result import Piece, Result
    from specjax.sharding import make_mesh
    from specjax.tuning import autotune

__all__ = [
    "Adaptive",
    "Decoder",
    "Metrics",
    "Piece",
    "Result",
    "adapters",
    "autotune",
    "bench",
    "check",
    "distributed",
    "drafters",
    "grammar",
    "io",
    "load",
    "loop",
    "make_mesh",
    "quantize",
    "save",
    "shard",
    "sharding",
    "stopping",
    "testing",
    "verify",
]
__version__ = "0.1.0"

_HOMES = {
    "Adaptive": "specjax.adaptive",
    "Decoder": "specjax.api",
    "Metrics": "specjax.metrics",
    "Piece": "specjax.result",
    "Result": "specjax.result",
    "autotune": "specjax.tuning",
    "load": "specjax.io",
    "make_mesh": "specjax.sharding",
    "quantize": "specjax.models",
    "save": "specjax.io",
    "shard": "specjax.models",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``specjax --help`` need not wait for jax."""
    if name not in __all__:
        raise AttributeError(f"module 'specjax' has no attribute {name!r}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    return import_module(f"specjax.{name}")
