"""What the machine can do, measured where the bench runs: bytes and operations a second."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

NUM_BYTES = 2**28
"""Far more than a CPU's caches hold."""

SIDE, PRODUCTS = 1024, 4


@dataclasses.dataclass(frozen=True)
class MachineSpeed:
    """``bandwidth`` in bytes a second, read by all cores; ``operations`` a second in products."""

    bandwidth: float
    operations: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which on arithmetic, not memory, takes the time.

        >>> MachineSpeed(bandwidth=20e9, operations=100e9).ridge
        5.0
        """
        return self.operations / self.bandwidth


def measure_machine(
    dtype: Any = jnp.float32,
    repeats: int = 5,
    *,
    clock: Callable[[], float] = time.perf_counter,
    num_bytes: int = NUM_BYTES,
) -> MachineSpeed:
    """Time a sum over float32 and a chain of products, after a warm run of each; the best counts.

    Args:
        dtype: of the products; additions are in float32 or wider.
        repeats: of each.
        clock: seconds since any moment.
        num_bytes: to read.
    """
    numbers = jnp.ones((64, num_bytes // 256), jnp.float32)  # rows, which cores share
    matrix = jnp.full((SIDE, SIDE), 1 / SIDE, dtype)
    reading = _best(lambda: _sums(numbers), repeats, clock)
    multiplying = _best(lambda: _products(matrix), repeats, clock)
    return MachineSpeed(num_bytes / reading, PRODUCTS * 2 * SIDE**3 / multiplying)


def _best(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    call().block_until_ready()
    found = []
    for _ in range(repeats):
        begin = clock()
        call().block_until_ready()
        found.append(clock() - begin)
    return min(found)


@jax.jit
def _sums(numbers: Float[Array, "R C"]) -> Float[Array, " R"]:
    return numbers.sum(-1)


@jax.jit
def _products(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    x = matrix
    for _ in range(PRODUCTS):
        x = x @ matrix
    return x
