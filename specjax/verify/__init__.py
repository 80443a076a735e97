"""Rules that decide how much of a draft to keep."""

from specjax.verify.block import Block
from specjax.verify.coupled import Coupled
from specjax.verify.token import Token
from specjax.verify.typical import Typical

__all__ = ["Block", "Coupled", "Token", "Typical"]
