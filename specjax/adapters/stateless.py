"""Modules without a cache: called as ``module(tokens)``, they read the whole context every pass.

``module(tokens i32[B, L]) -> logits f[B, L, V]`` must be causal: logits at a position depend on
tokens up to it, so what is padded on the right changes nothing that counts. Every pass costs L
positions, and a draft tree as many for each of its nodes: right for small models and for trying
out, too dear for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.adapters.adapted import Adapted, SlotCache, refuse_layers
from specjax.cache import write_slots
from specjax.nn import visible


@struct.dataclass(kw_only=True)
class Stateless(Adapted):
    """A causal module as a ``Target``; its cache is the tokens themselves."""

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> SlotCache:
        """Allocate ``capacity`` tokens a row; ``scratch`` is for rings, and there are none."""
        return SlotCache(jnp.zeros((batch, capacity), jnp.int32))

    def extend(
        self,
        inputs: Int[Array, "B T"] | Float[Array, "B T D"],
        start: Int[Array, " B"],
        cache: SlotCache,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T V"], SlotCache, tuple[()]]:
        """Run the contexts of T positions, as ``specjax.protocols.Target.extend`` says.

        A position is the number of slots seen before it; ``positions`` can say nothing else.

        Raises:
            ValueError: hidden inputs, ``layers``, ``capture``, ``positions`` without a mask, or a
                module that breaks the contract.
        """
        refuse_layers(inputs, layers, capture)
        if positions is not None and mask is None:
            raise ValueError(
                "positions: a module without a cache counts them itself; leave them out, or give "
                "the mask of their tree as well"
            )
        tokens = write_slots(cache.entries, inputs, start, count)
        # What is none of the vocabulary may give NaN, which no mask keeps out of a product.
        slots = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        used = slots < (start + count)[:, None]
        context = jnp.where(used, tokens, 0)
        if mask is None:
            logits = self._chain(context, start, inputs.shape[1])
        else:
            logits = self._tree(context, visible(slots, start, inputs.shape[1], mask))
        return logits, SlotCache(tokens), ()

    def _chain(
        self, context: Int[Array, "B S"], start: Int[Array, " B"], num: int
    ) -> Float[Array, "B T V"]:
        """One run over each context; the logits of its last ``num`` positions."""
        at = start[:, None] + jnp.arange(num, dtype=jnp.int32)
        return _at(self._run(context), at)

    def _tree(
        self, context: Int[Array, "B S"], seen: Bool[Array, "B T S"]
    ) -> Float[Array, "B T V"]:
        """A run over the path of every input: the slots that it sees, laid end to end."""
        batch, num, size = seen.shape
        repeated = jnp.broadcast_to(context[:, None], seen.shape).reshape(-1, size)
        paths = _left_aligned(repeated, seen.reshape(-1, size))
        last = seen.sum(-1, dtype=jnp.int32).reshape(-1, 1) - 1
        return _at(self._run(paths), last).reshape(batch, num, -1)

    def _run(self, context: Int[Array, "B S"]) -> Float[Array, "B L V"]:
        """Run no further than the module can: what drafts hold beyond is never kept."""
        return self.run(context[:, : self.max_length])


def _left_aligned(tokens: Int[Array, "B S"], kept: Bool[Array, "B S"]) -> Int[Array, "B S"]:
    """Move the kept tokens of each row to its front, in order, zeros after them."""
    size = tokens.shape[1]
    beyond = size + jnp.arange(size, dtype=jnp.int32)  # each dropped write has its own index

    def one_row(row, keep):
        at = jnp.where(keep, jnp.cumsum(keep, dtype=jnp.int32) - 1, beyond)
        return jnp.zeros_like(row).at[at].set(row, mode="drop", unique_indices=True)

    return jax.vmap(one_row)(tokens, kept)


def _at(logits: Float[Array, "B L V"], at: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """Select positions; those beyond the end take the last one, and are never used."""
    at = jnp.clip(at, 0, logits.shape[1] - 1)
    return jnp.take_along_axis(logits, at[..., None], axis=1)
