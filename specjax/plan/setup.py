"""What is planned: which models, on which devices, for how many rows of which length."""

from __future__ import annotations

import dataclasses
from typing import Literal

from specjax.models import Config
from specjax.plan.chips import Machine, find_machine
from specjax.request import LEAST_CAPACITY, bucket
from specjax.sharding import REPLICATED, RULES

Placement = Literal["sharded", "replicated"]

PLACEMENTS = {"sharded": RULES, "replicated": REPLICATED}
"""The rules by which a model lies on the mesh."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """One plan's question. Lengths are in tokens.

    ``topology`` is a name such as "v5e:4x4", or a machine whose figures were measured.
    ``drafter`` is a draft model; None is the n-gram drafter, or plain decoding where
    ``draft_length`` is 0. ``context`` is the longest prompt and output together, ``prompt`` the
    part of it that is prefilled (default: half). ``mesh`` is the devices along (data, model);
    rows are cut along data, weights along model. ``placement`` says whether the draft model is
    cut like the target, or whole on every device. ``chunk`` is how wide a prefill pass is.

    Raises:
        ValueError: a number is out of range, the mesh does not hold the machine's devices, or
            the models do not go together.
    """

    target: Config
    topology: str | Machine
    drafter: Config | None = None
    draft_length: int = 5
    batch: int = 1
    context: int = 4096
    prompt: int | None = None
    dtype: str = "bfloat16"
    mesh: tuple[int, int] | None = None
    placement: Placement = "sharded"
    chunk: int = 256

    def __post_init__(self) -> None:
        _check_numbers(self)
        data, model = self.mesh_shape
        if data * model != self.machine.num_devices:
            raise ValueError(
                f"mesh: {data}x{model} is {data * model} devices, and there are "
                f"{self.machine.num_devices}; give factors of that"
            )
        if self.batch % data:
            raise ValueError(
                f"batch: {self.batch} rows cannot be cut {data} ways along data; "
                "give a multiple, or a mesh with fewer"
            )
        if self.drafter is not None and self.drafter.vocab_size != self.target.vocab_size:
            raise ValueError(
                f"drafter: has {self.drafter.vocab_size} tokens, the target "
                f"{self.target.vocab_size}; draft with a model of the same vocabulary"
            )

    @property
    def machine(self) -> Machine:
        """The chip, and how many devices there are."""
        return find_machine(self.topology) if isinstance(self.topology, str) else self.topology

    @property
    def mesh_shape(self) -> tuple[int, int]:
        """Devices along (data, model); by default all are along model."""
        return (1, self.machine.num_devices) if self.mesh is None else self.mesh

    @property
    def prompt_length(self) -> int:
        """Tokens that are prefilled in each row."""
        return self.context // 2 if self.prompt is None else self.prompt

    @property
    def capacity(self) -> int:
        """Tokens that are allocated for each row: the bucket of ``context``."""
        return bucket(self.context, LEAST_CAPACITY)

    @property
    def slots(self) -> int:
        """Slots of a row's caches: every pass may write past the last committed token."""
        return self.capacity + self.draft_length + 1

    def but(self, **changes) -> Setup:
        """The same question with some fields changed."""
        return dataclasses.replace(self, **changes)


def _check_numbers(setup: Setup) -> None:
    least = {"draft_length": 0, "batch": 1, "context": 2, "chunk": 1}
    for name, low in least.items():
        if getattr(setup, name) < low:
            raise ValueError(f"{name}: {getattr(setup, name)} is below {low}; give more")
    if not 1 <= setup.prompt_length < setup.context:
        raise ValueError(
            f"prompt: {setup.prompt_length} tokens leave no room in a context of "
            f"{setup.context}; give from 1 to {setup.context - 1}"
        )
    longest = setup.target.max_length
    if longest is not None and setup.context > longest:
        raise ValueError(f"context: {setup.context} is beyond the target's {longest}; lower it")
    if setup.drafter is not None and setup.draft_length == 0:
        raise ValueError("draft_length: a draft model drafts at least 1 token; leave out either")
    if setup.drafter is None and setup.placement == "replicated":
        raise ValueError("placement: only a draft model can be replicated; name one, or drop it")
    if setup.dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype: {setup.dtype!r} is none of bfloat16, float16, float32")
    if setup.placement not in PLACEMENTS:
        raise ValueError(f"placement: {setup.placement!r} is neither sharded nor replicated")
