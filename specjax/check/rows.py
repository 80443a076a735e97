"""The rows that are checked, laid out in arrays."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.request import Request, aligned
from specjax.types import Sampling


def lay_out(
    texts: Sequence[Sequence[int]], budget: int, values: Sampling, seed: int, *, depth: int
) -> Request:
    """Texts with room for ``budget`` tokens, drafts up to ``depth``, one seed after the other.

    ``values`` has one entry a row, or one for all; only the budget ends a row.
    """
    batch, longest = len(texts), max(map(len, texts))
    length = jnp.asarray([len(ids) for ids in texts], jnp.int32)
    return Request(
        tokens=jnp.asarray(aligned(texts, longest + budget)),
        length=length,
        limit=length + budget,
        sampling=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape[1:])), values),
        seeds=jnp.asarray((seed + np.arange(batch)) % 2**32, jnp.uint32),
        cap=jnp.full(batch, depth, jnp.int32),
    )
