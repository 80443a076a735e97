"""A language model small enough to enumerate: a table of logits after the last two tokens."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.cache import move_slots, write_slots
from specjax.nn import visible


@struct.dataclass
class TokenCache:
    """The token and position of every slot: enough to go wrong in all the ways a real cache can."""

    tokens: Int[Array, "B S"]
    positions: Int[Array, "B S"]

    def insert(self, slot: Int[Array, ""] | int, one: TokenCache) -> TokenCache:
        """Put the single row of ``one`` into row ``slot``."""
        return jax.tree.map(lambda x, y: x.at[slot].set(y[0]), self, one)

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> TokenCache:
        """Make an accepted tree path contiguous."""
        return jax.tree.map(lambda slots: move_slots(slots, start, path), self)


@struct.dataclass
class TableLM:
    """A ``Target`` whose law depends on the newest token and, through its cache, on the one before.

    ``table[a, b]`` are the logits after ... a, b; before the first token a is 0. A hidden state
    is (a, b, how many layers were run), and so is a feature. The fewer layers, the less is seen of
    a: after n of L layers the logits are n/L of ``table[a, b]`` and the rest of ``table[0, b]``.
    """

    table: Float[Array, "V V V"]
    num_layers: int = struct.field(pytree_node=False, default=3)
    max_length: int | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def random(cls, key: Key[Array, ""], vocab_size: int, scale: float = 1.0) -> TableLM:
        """Draw normal logits; a larger ``scale`` makes a more predictable model."""
        return cls(scale * jax.random.normal(key, (vocab_size,) * 3, jnp.float32))

    @property
    def vocab_size(self) -> int:
        return self.table.shape[-1]

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> TokenCache:
        """Allocate ``capacity`` slots a row."""
        empty = jnp.zeros((batch, capacity), jnp.int32)
        return TokenCache(empty, empty + 0)

    def extend(
        self,
        inputs: Int[Array, "B T"] | Float[Array, "B T D"],
        start: Int[Array, " B"],
        cache: TokenCache,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T D"], TokenCache, tuple[Float[Array, "B T D"], ...]]:
        """Look back one position among the visible slots."""
        layers = range(self.num_layers) if layers is None else layers
        missing = [i for i in capture if i not in layers]
        if missing:
            raise ValueError(f"capture: layers {missing} are not run")
        if inputs.ndim == 3:
            return _run(inputs, len(layers)), cache, _features(inputs, layers, capture)
        if positions is None:
            positions = start[:, None] + jnp.arange(inputs.shape[1], dtype=jnp.int32)
        cache = TokenCache(
            write_slots(cache.tokens, inputs, start, count),
            write_slots(cache.positions, positions, start, count),
        )
        slots = jnp.arange(cache.tokens.shape[1], dtype=jnp.int32)[None]
        seen = visible(slots, start, inputs.shape[1], mask)
        before = seen & (cache.positions[:, None] == positions[..., None] - 1)
        previous = jnp.where(before, cache.tokens[:, None], 0).sum(-1)
        hidden = jnp.stack([previous, inputs, jnp.zeros_like(inputs)], axis=-1).astype(jnp.float32)
        return _run(hidden, len(layers)), cache, _features(hidden, layers, capture)

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The token alone, without the one before it, and no layer run."""
        zeros = jnp.zeros_like(tokens)
        return jnp.stack([zeros, tokens, zeros], axis=-1).astype(jnp.float32)

    def unembed(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Look the logits up."""
        pair = jnp.clip(hidden[..., :2].astype(jnp.int32), 0, self.vocab_size - 1)
        whole, alone = self.table[pair[..., 0], pair[..., 1]], self.table[0, pair[..., 1]]
        share = (hidden[..., 2:] / self.num_layers).astype(whole.dtype)
        return jnp.where(share < 1, share * whole + (1 - share) * alone, whole)


def _run(hidden: Float[Array, "B T D"], num: int) -> Float[Array, "B T D"]:
    """Count ``num`` layers more."""
    return hidden.at[..., 2].add(num)


def _features(hidden: Float[Array, "B T D"], layers: Sequence[int], capture: Sequence[int]):
    """Hidden states after each captured layer, ``hidden`` being those before all."""
    return tuple(_run(hidden, tuple(layers).index(i) + 1) for i in capture)
