"""What is to be tried: drafters, each alone or as a family with a member for each draft length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from specjax.api import Decoder
from specjax.configure import default_widths
from specjax.drafters import NGram, Suffix
from specjax.program import Program
from specjax.prompts import is_int
from specjax.protocols import Feedback


@dataclasses.dataclass(frozen=True)
class Family:
    """One entry of the list of drafters: its members by draft length, alike in all else.

    ``index`` is its place in that list.
    """

    index: int
    members: dict[int, Any]

    @cached_property
    def name(self) -> str:
        """The drafter's kind."""
        kind = type(self.widest).__name__
        chain = self.widest.num_nodes == self.widest.depth or kind.endswith("Tree")
        return kind if chain else f"{kind} tree"

    @property
    def longest(self) -> int:
        """The draft length of the member with the most nodes."""
        return max(self.members, key=lambda length: self.members[length].num_nodes)

    @property
    def widest(self) -> Any:
        """The member with the most nodes."""
        return self.members[self.longest]

    @property
    def adapts(self) -> bool:
        """Whether its passes may be narrower than its drafts."""
        return not isinstance(self.widest, Feedback)

    def widths(self, length: int, *, adaptive: bool) -> tuple[int, ...]:
        """Draft nodes to compile passes for: none and all, or several where lengths adapt."""
        return default_widths(self.members[length]) if adaptive else (0,)

    def program(self, target: Any, length: int, *, adaptive: bool = False) -> Program:
        """The program of a member, without a policy."""
        widths = self.widths(length, adaptive=adaptive)
        return Decoder(target, self.members[length], widths=widths).program

    def num_fed(self, target: Any) -> set[int]:
        """All numbers of draft nodes that a pass of any member may feed."""
        fed = {n for length in self.members for n in self.program(target, length).passes}
        return fed | set(self.program(target, self.longest, adaptive=self.adapts).passes)


def default_drafters() -> list[Any]:
    """Those that need no training: n-grams, and suffixes as chains and as trees.

    >>> [drafter(4).num_nodes for drafter in default_drafters()]
    [4, 4, 8]
    """
    return [NGram, Suffix, lambda length: Suffix(length, num_nodes=2 * length)]


def families_of(target: Any, drafters: Any, draft_lengths: Sequence[int]) -> list[Family]:
    """Families of the drafters given: each a drafter, or a callable from draft length to drafter.

    Raises:
        ValueError: there are none, one is no drafter or drafts nothing or is not for ``target``,
            or a draft length is below 1.
    """
    if drafters is None:
        drafters = default_drafters()
    if not isinstance(drafters, Sequence):
        drafters = [drafters]
    if not drafters:
        raise ValueError("drafters: is empty; give at least one, such as NGram(4), or None")
    if not draft_lengths or not all(is_int(k) and k >= 1 for k in draft_lengths):
        raise ValueError(f"draft_lengths: must be ints of at least 1, got {draft_lengths!r}")
    lengths = sorted({int(length) for length in draft_lengths})
    return [_family(target, index, given, lengths) for index, given in enumerate(drafters)]


def _family(target: Any, index: int, given: Any, lengths: list[int]) -> Family:
    name = f"drafters: number {index}"
    if not isinstance(given, type) and hasattr(given, "propose"):
        members = {getattr(given, "depth", 0): given}
    elif callable(given):
        members = {length: given(length) for length in lengths}
    else:
        raise ValueError(
            f"{name} must be a drafter such as NGram(4), or a function from draft length to "
            f"drafter; got {given!r:.60}"
        )
    for drafter in members.values():
        try:
            program = Decoder(target, drafter).program
        except ValueError as error:
            raise ValueError(f"{name} cannot be used: {error}") from error
        if program.drafter.num_nodes == 0:
            raise ValueError(f"{name} drafts nothing; leave it out, plain decoding is compared too")
    return Family(index, members)
