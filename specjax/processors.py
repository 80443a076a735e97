"""What changes logits before temperature and filters: bias, penalties, bans by history.

Each is in the program only where a call uses it; its values are leaves, one a row, and a neutral
value leaves a row alone. All see the prompt, the output, and the draft tokens on the way to a node.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.protocols import Processor
from specjax.sampling import FILTERS, Stateless
from specjax.types import Sampling

OVERFLOW = 1e38
"""A penalty makes no logit larger: an infinite one would make NaN of the law."""


def members(ids: Int[Array, " N"], size: int, among: Bool[Array, " N"]) -> Bool[Array, " V"]:
    """Mark the ids, of those ``among``, in a vocabulary; ids outside it mark nothing."""
    among = among & (ids >= 0)  # a negative index would wrap before it is dropped
    return jnp.zeros(size, bool).at[jnp.where(among, ids, size)].set(True, mode="drop")


@struct.dataclass
class Bias(Stateless):
    """Add ``bias``: logit_bias, -inf for banned tokens and for all that are not allowed.

    A ban commutes with everything before the temperature, so this one place serves all three.
    """

    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]:
        assert row.bias is not None
        return logits + row.bias.astype(logits.dtype)


@struct.dataclass
class Tokens:
    """The text up to a node."""

    tokens: Int[Array, " L"]
    length: Int[Array, ""]


class WithHistory:
    """Base of processors that look back at the text."""

    def init(self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling) -> Tokens:
        return Tokens(tokens, length)

    def advance(self, h: Tokens, token: Int[Array, ""]) -> Tokens:
        return Tokens(h.tokens.at[h.length].set(token, mode="drop"), h.length + 1)

    def follow(self, h: Tokens, path: Int[Array, " K"], depth: Int[Array, ""]) -> Tokens:
        """Advance over the first ``depth`` tokens of a path in one write."""
        ahead = jnp.arange(path.shape[0], dtype=jnp.int32)
        at = jnp.where(ahead < depth, h.length + ahead, h.tokens.shape[0])
        return Tokens(h.tokens.at[at].set(path, mode="drop"), h.length + depth)


@struct.dataclass
class Penalties(WithHistory):
    """Make tokens of the text less likely, by division, once, and by how often they occurred.

    repetition_penalty divides positive logits and multiplies negative ones (Keskar et al. 2019);
    presence_penalty is subtracted once, frequency_penalty for each occurrence. The text is
    prompt and output, as in transformers; some servers count the output alone.
    """

    def apply(self, logits: Float[Array, " V"], h: Tokens, row: Sampling) -> Float[Array, " V"]:
        assert row.repetition_penalty is not None
        assert row.presence_penalty is not None
        assert row.frequency_penalty is not None
        size = logits.shape[0]
        inside = jnp.arange(h.tokens.shape[0], dtype=jnp.int32) < h.length
        counts = jnp.zeros(size, logits.dtype)
        counts = counts.at[jnp.where(inside, h.tokens, size)].add(1, mode="drop")
        repetition = row.repetition_penalty.astype(logits.dtype)
        scaled = jnp.where(logits < 0, logits * repetition, logits / repetition)
        scaled = jnp.minimum(scaled, OVERFLOW)
        offset = row.presence_penalty + row.frequency_penalty * counts.astype(jnp.float32)
        return jnp.where(counts > 0, scaled - offset.astype(logits.dtype), logits)


@struct.dataclass
class NoRepeatNGram(WithHistory):
    """Ban what would complete an n-gram that the text already has (Paulus et al. 2017)."""

    def apply(self, logits: Float[Array, " V"], h: Tokens, row: Sampling) -> Float[Array, " V"]:
        assert row.no_repeat_ngram_size is not None
        size = row.no_repeat_ngram_size
        place = jnp.arange(h.tokens.shape[0], dtype=jnp.int32)

        def match(back, going):
            return going & (jnp.roll(h.tokens, back) == h.tokens[h.length - back])

        ends = (size > 0) & (place < h.length) & (place >= size - 1)
        longest = jnp.minimum(size, place.shape[0])  # nothing that is longer has ended yet
        ends = jax.lax.fori_loop(1, longest, match, ends)
        banned = members(h.tokens, logits.shape[0], ends)
        return jnp.where(banned, -jnp.inf, logits)


@struct.dataclass
class MinNewTokens:
    """Ban stop ids until the output is ``min_new_tokens`` long."""

    def init(
        self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling
    ) -> Int[Array, ""]:
        return jnp.zeros((), jnp.int32)

    def advance(self, h: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        return h + 1

    def apply(
        self, logits: Float[Array, " V"], h: Int[Array, ""], row: Sampling
    ) -> Float[Array, " V"]:
        assert row.min_new_tokens is not None
        early = jnp.broadcast_to(h < row.min_new_tokens, row.stop_ids.shape)
        return jnp.where(members(row.stop_ids, logits.shape[0], early), -jnp.inf, logits)


def chain(values: Sampling, own: tuple[Processor, ...] = ()) -> tuple[Processor, ...]:
    """The processors that these values need, in the order in which transformers applies them.

    Bias (and bans), repetition, presence and frequency penalty, no_repeat_ngram_size,
    min_new_tokens, then ``own`` (a grammar, a user's), temperature, top-k, top-p, min-p.
    """
    needed = (
        (values.bias, Bias()),
        (values.repetition_penalty, Penalties()),
        (values.no_repeat_ngram_size, NoRepeatNGram()),
        (values.min_new_tokens, MinNewTokens()),
    )
    return (*(p for value, p in needed if value is not None), *own, *FILTERS)
