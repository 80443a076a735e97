"""The rows that are checked, laid out in arrays, and the state they start from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, UInt32

from specjax import loop, rng
from specjax.program import Program
from specjax.types import Sampling, State


@struct.dataclass
class Rows:
    """Texts with room to go on, how each is sampled, and its seed; only the budget ends a row."""

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]
    limit: Int[Array, " B"]
    values: Sampling
    seeds: UInt32[Array, " B"]


def lay_out(texts: Sequence[Sequence[int]], budget: int, values: Sampling, seed: int) -> Rows:
    """Rows of one seed after the other; ``values`` has one entry a row, or one for all."""
    batch, longest = len(texts), max(map(len, texts))
    tokens = np.zeros((batch, longest + budget), np.int32)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = ids
    length = jnp.asarray([len(ids) for ids in texts], jnp.int32)
    return Rows(
        tokens=jnp.asarray(tokens),
        length=length,
        limit=length + budget,
        values=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape[1:])), values),
        seeds=jnp.asarray((seed + np.arange(batch)) % 2**32, jnp.uint32),
    )


@partial(jax.jit, static_argnames="chunk")
def begin(program: Program, rows: Rows, *, chunk: int) -> State:
    """Allocate and prefill."""
    state = loop.start(
        program,
        rows.tokens,
        rows.length,
        sampling_values=rows.values,
        key=rng.row_keys(rows.seeds),
        limit=rows.limit,
    )
    return loop.prefill(program, state, chunk=chunk)
