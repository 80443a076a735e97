"""What lies in one device's memory: weights, caches, and what a round needs for a while."""

from __future__ import annotations

import dataclasses

from specjax.drafters import DraftModel
from specjax.models import Config
from specjax.plan.setup import Setup
from specjax.plan.shards import Shard, shard_of

LAWS_AT_ONCE = 3
"""Arrays of the size of the target's laws [B, K + 1, V] that a round holds at the same time."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes a device, by what they are of.

    ``scratch`` and ``draft_scratch`` are the slots of the caches beyond the context, which grow
    with K. ``draft_probs`` are the laws [B, K, V] that the draft was drawn from. ``working`` is
    all else that a program needs.
    """

    weights: float
    draft_weights: float
    cache: float
    draft_cache: float
    scratch: float
    draft_scratch: float
    draft_probs: float
    working: float

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))

    @property
    def caches(self) -> float:
        """Bytes of all caches, with every slot."""
        return self.cache + self.draft_cache + self.scratch + self.draft_scratch

    @property
    def by_draft_length(self) -> float:
        """Bytes that grow with K."""
        return self.scratch + self.draft_scratch + self.draft_probs


def target_shard(setup: Setup) -> Shard:
    """One device's part of the target."""
    return _shard(setup, setup.target, "sharded")


def drafter_shard(setup: Setup) -> Shard | None:
    """One device's part of the draft model, None where there is none."""
    if setup.drafter is None:
        return None
    return _shard(setup, setup.drafter, setup.placement)


def _shard(setup: Setup, config: Config, placement: str) -> Shard:
    return shard_of(config, setup.mesh_shape, setup.dtype, placement, setup.machine.is_tpu)


def ring_scratch(setup: Setup) -> tuple[int, int]:
    """Slots that layers with a window keep beyond it: in the target's cache, in the draft's."""
    num = setup.draft_length
    return max(setup.chunk, num + 1), max(DraftModel.catch_up, num + 2)


def memory_of(setup: Setup) -> Memory:
    """Bytes of one device, by what they are of; ``working`` is an estimate."""
    target, drafter = target_shard(setup), drafter_shard(setup)
    cache, scratch = _cache_bytes(target, setup, ring_scratch(setup)[0])
    draft_cache, draft_scratch = (
        (0, 0) if drafter is None else _cache_bytes(drafter, setup, ring_scratch(setup)[1])
    )
    rows, size = setup.batch // target.num_data, setup.target.vocab_size
    return Memory(
        weights=target.weight_bytes,
        draft_weights=0 if drafter is None else drafter.weight_bytes,
        cache=cache,
        draft_cache=draft_cache,
        scratch=scratch,
        draft_scratch=draft_scratch,
        draft_probs=0 if drafter is None else 4 * rows * setup.draft_length * size,
        working=_working(target, setup, rows),
    )


def _cache_bytes(shard: Shard, setup: Setup, ring: int) -> tuple[int, int]:
    """Bytes of the slots of the context, and of those beyond."""
    kept = shard.cache_bytes(setup.batch, setup.capacity, 0)
    return kept, shard.cache_bytes(setup.batch, setup.slots, ring) - kept


def _working(shard: Shard, setup: Setup, rows: int) -> float:
    """The widest of a prefill pass, in hidden states and what a layer makes of them; and laws."""
    layer = [
        shape[-1]
        for path, shape in shard.weights.items()
        if path.startswith("layers.0.") and path.endswith((".kernel", ".weight"))
    ]
    channels = 2 * shard.config.hidden_size + 2 * max(layer)
    laws = LAWS_AT_ONCE * (setup.draft_length + 1) * setup.target.vocab_size
    return rows * (setup.chunk * channels * shard.itemsize + 4 * laws)


def largest_batch(setup: Setup, *, share: float = 1.0, beyond: float = 0.0) -> int:
    """The most rows whose memory fits, 0 where not even one row along data does.

    Of the working memory that is estimated a program needs a ``share``, and ``beyond`` however
    many rows there are.
    """
    data = setup.mesh_shape[0]

    def fits(steps: int) -> bool:
        memory = memory_of(setup.but(batch=steps * data))
        needed = memory.total - (1 - share) * memory.working + beyond
        return needed <= setup.machine.chip.memory

    return _largest(fits) * data


def _largest(holds, limit: int = 2**20) -> int:
    """The largest number up to ``limit`` for which ``holds``, which once false stays false."""
    low, high = 0, 1
    while high <= limit and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
