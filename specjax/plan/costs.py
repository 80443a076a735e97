"""What one device reads, computes and sends in a pass: bytes and operations, before any time.

A pass is a target's or a draft model's over ``width`` positions of every row. An operation is a
multiplication or an addition.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from specjax.experts import block_size, expected_reads
from specjax.nn import BLOCK
from specjax.plan.shards import Shard

LAW_PASSES = 6
"""How often a law [B, T, V] in float32 is read or written, from logits to a verdict.

Logits out, processed, softmax in and out, compared, drawn from; filters that are in use add some.
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Bytes by what they are of, operations, and what is sent to other devices.

    ``cache`` is read, ``written`` are the new positions' keys and values. ``sent`` is in bytes,
    ``exchanges`` counts the collectives.
    """

    weights: float = 0.0
    experts: float = 0.0
    cache: float = 0.0
    written: float = 0.0
    laws: float = 0.0
    operations: float = 0.0
    sent: float = 0.0
    exchanges: float = 0.0

    @property
    def bytes(self) -> float:
        """Bytes that go to and from the device's memory."""
        return self.weights + self.experts + self.cache + self.written + self.laws

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes if self.bytes else 0.0

    def __add__(self, other: Cost) -> Cost:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Cost(*(a + b for a, b in pairs))

    def __mul__(self, times: float) -> Cost:
        return Cost(*(a * times for a in dataclasses.astuple(self)))


def pass_costs(
    shard: Shard,
    rows: int,
    width: int,
    filled: int,
    *,
    slots: int,
    ring: int,
    laws: int | None = None,
) -> tuple[Cost, ...]:
    """A pass over ``width`` positions of each row, in parts of which no two run at a time.

    Args:
        shard: one device's part of the model.
        rows: of all devices together.
        width: positions fed in each row.
        filled: slots in use in each row.
        slots: slots allocated for each row.
        ring: slots that a layer with a window keeps beyond it.
        laws: positions of each row whose logits are wanted; default all.
    """
    laws = width if laws is None else laws
    here = rows // shard.num_data
    return (
        _products(shard, here * width),
        _attention(shard, here, width, filled, shard.cache_shapes(slots, ring)),
        _mixture(shard, here * width),
        _head(shard, here * laws),
        _sums(shard, here, width),
    )


def _products(shard: Shard, positions: int) -> Cost:
    """Every kernel and norm of the layers, but those of experts; and the embeddings looked up."""
    layers = shard.in_layers
    looked_up = positions * shard.config.hidden_size
    return Cost(weights=(layers + looked_up) * shard.itemsize, operations=2.0 * layers * positions)


def _attention(
    shard: Shard, rows: int, width: int, filled: int, layers: Mapping[tuple[int, int], int]
) -> Cost:
    """Keys and values of the slots in use, in whole blocks, and what is written."""
    read = written = operations = 0.0
    for (allocated, size), num in layers.items():
        block = min(BLOCK, allocated)
        slots = -(-min(filled, allocated) // block) * block
        read += num * rows * slots * size * shard.itemsize
        written += num * rows * width * size * shard.itemsize
        operations += 4.0 * num * rows * width * slots * shard.heads * shard.config.head_dim
    return Cost(cache=read, written=written, operations=operations)


def _mixture(shard: Shard, positions: int) -> Cost:
    """Experts, each read once for a block of its positions; routers choose alike and apart."""
    experts = shard.config.experts
    held = shard.in_experts
    if experts is None or not held:
        return Cost()
    blocks = expected_blocks(experts.num, experts.num_chosen, positions)
    block = block_size(positions, experts.num_chosen, experts.num)
    one = held / experts.num
    return Cost(experts=blocks * one * shard.itemsize, operations=2.0 * blocks * block * one)


def expected_blocks(num_experts: int, num_chosen: int, positions: int) -> float:
    """Times that a pass reads an expert of a layer, were each choice uniform and independent.

    Where one block holds all positions these are the distinct experts. Else n of an expert's
    positions take ceil(n / block) readings, n being binomial.

    >>> expected_blocks(8, 2, 1), round(expected_blocks(128, 8, 6), 1)
    (2.0, 41.1)
    >>> 8 < expected_blocks(8, 2, 100) < 16
    True
    """
    block = block_size(positions, num_chosen, num_experts)
    if block >= positions:
        return expected_reads(num_experts, num_chosen, positions)
    share = num_chosen / num_experts
    if share == 1:
        return float(num_experts * -(-positions // block))
    log = [math.lgamma(n + 1) for n in range(positions + 1)]
    each = np.arange(positions + 1)
    weight = log[positions] - np.array(log) - np.array(log)[::-1]
    law = np.exp(weight + each * math.log(share) + each[::-1] * math.log1p(-share))
    return num_experts * float((law * -(-each // block)).sum())


def _head(shard: Shard, positions: int) -> Cost:
    """Logits of some positions, and what is done with their laws."""
    if not positions:
        return Cost()
    head = shard.in_head
    gathered = shard.is_cut("head.kernel")
    logits = 4.0 * positions * shard.config.vocab_size
    others = (shard.num_model - 1) / shard.num_model
    return Cost(
        weights=head * shard.itemsize,
        laws=LAW_PASSES * logits,
        operations=2.0 * head * positions,
        sent=logits * others if gathered else 0.0,
        exchanges=1.0 if gathered else 0.0,
    )


def _sums(shard: Shard, rows: int, width: int) -> Cost:
    """All-reduces of hidden states: those in layers, and that of the embeddings."""
    cut = shard.sums_in_layers
    cut += shard.is_cut("head.kernel" if shard.config.tied else "embedding")
    size = rows * width * shard.config.hidden_size * shard.itemsize
    others = (shard.num_model - 1) / shard.num_model
    return Cost(sent=2.0 * cut * size * others, exchanges=float(cut))
