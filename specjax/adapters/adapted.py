"""What adapted modules have in common: they run whole, from tokens to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.cache import move_slots
from specjax.nn import wide
from specjax.protocols import Tokenizer


@struct.dataclass
class SlotCache:
    """Any pytree of [B, S, ...] arrays as a ``Cache``, one slot a position."""

    entries: Any

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return jax.tree.leaves(self.entries)[0].shape[1]

    def insert(self, slot: Int[Array, ""] | int, one: SlotCache) -> SlotCache:
        """Put the single row of ``one`` into row ``slot``."""
        return jax.tree.map(lambda x, y: x.at[slot].set(y[0]), self, one)

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> SlotCache:
        """Make an accepted tree path contiguous: slot start + path[:, j] to start + 1 + j."""
        return jax.tree.map(lambda slots: move_slots(slots, start, path), self)


@struct.dataclass(kw_only=True)
class Adapted:
    """A module as a ``Target``. What stands for a hidden state here is the logits themselves.

    ``call(weights, *arguments)`` runs the module; it is static, hence hashable, and equal for
    modules that differ in their weights alone.
    """

    weights: Any
    call: Callable[..., Any] = struct.field(pytree_node=False)
    vocab_size: int = struct.field(pytree_node=False)
    max_length: int | None = struct.field(pytree_node=False, default=None)
    tokenizer: Tokenizer | None = struct.field(pytree_node=False, default=None)

    @property
    def num_layers(self) -> int:
        """None: the adapter does not see the module's layers."""
        return 0

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Refuse: a module has no place to take embeddings from.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "embed: an adapted module goes from tokens to logits and shows no embedding; "
            "use a drafter that needs none"
        )

    def unembed(self, hidden: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """Pass the logits on, in float32 or wider."""
        return hidden.astype(wide(hidden.dtype))

    def run(self, tokens: Int[Array, "B T"], *arguments: Any) -> Float[Array, "B T V"]:
        """Call the module.

        Raises:
            ValueError: what comes back is not [B, T, V] logits.
        """
        logits = self.call(self.weights, tokens, *arguments)
        wanted = (*tokens.shape, self.vocab_size)
        if not hasattr(logits, "shape"):
            raise ValueError(
                f"module: must return an array of logits alone, got a {type(logits).__name__}"
            )
        if logits.shape != wanted or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise ValueError(
                f"module: returned {logits.dtype}{list(logits.shape)} for tokens "
                f"{list(tokens.shape)}, where floating logits of {list(wanted)} are due; does "
                f"vocab_size={self.vocab_size} belong to it?"
            )
        return logits


def refuse_layers(inputs: Array, layers: Sequence[int] | None, capture: Sequence[int]) -> None:
    """Raise where a pass asks for what only a model with visible layers can do.

    Raises:
        ValueError: hidden states as inputs, ``layers``, or ``capture``.
    """
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
        raise ValueError("inputs: an adapted module takes token ids, not hidden states")
    if layers is not None:
        raise ValueError(f"layers: an adapted module runs whole, it cannot run layers {layers}")
    if capture:
        raise ValueError(
            f"capture: an adapted module shows no layers, not even {tuple(capture)}; use a drafter "
            "that wants no features"
        )
