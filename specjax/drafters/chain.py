"""What drafters of a single chain have in common."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int


class Chain:
    """A drafter that proposes ``draft_length`` tokens one after the other and watches nothing."""

    draft_length: int

    def __post_init__(self) -> None:
        if isinstance(self.draft_length, bool) or not isinstance(self.draft_length, int):
            raise ValueError(f"draft_length: must be an int, got {self.draft_length!r}")
        if self.draft_length < 1:
            raise ValueError(f"draft_length: must be at least 1, got {self.draft_length}")

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
