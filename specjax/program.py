"""What a program is made of: a target, a drafter, a verifier, and the processors of both."""

from __future__ import annotations

from typing import Any

from flax import struct

from specjax import sampling
from specjax.protocols import Processor


@struct.dataclass
class Program:
    """What every round runs: weights and stores are leaves, everything else is static."""

    target: Any
    drafter: Any
    verifier: Any
    processors: tuple[Processor, ...] = sampling.FILTERS

    @property
    def is_chain(self) -> bool:
        """A chain needs no mask, and its accepted path is contiguous as it was fed."""
        return self.drafter.num_nodes == self.drafter.depth
