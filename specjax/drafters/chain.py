"""What drafters of a single chain have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int


def at_least_one(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name}: must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: must be at least 1, got {value}")


class Chain:
    """A drafter that proposes ``draft_length`` tokens one after the other and watches nothing."""

    draft_length: int

    def __post_init__(self) -> None:
        at_least_one("draft_length", self.draft_length)

    @property
    def depth(self) -> int:
        return self.draft_length

    @property
    def num_nodes(self) -> int:
        return self.draft_length

    @property
    def tree_depth(self) -> int:
        return self.draft_length

    @property
    def wants(self) -> tuple[int, ...]:
        return ()

    @property
    def samples(self) -> bool:
        return False

    @property
    def num_kinds(self) -> int:
        return 1

    @property
    def rows_independent(self) -> bool:
        return True

    def validate(self, target: Any) -> None:
        """Go with any target."""

    def init(self, target: Any, batch: int, capacity: int) -> Any:
        """Keep no state."""
        return ()

    def observe(
        self,
        target: Any,
        state: Any,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Any:
        """Learn nothing from committed tokens."""
        return state
