"""A store of texts in which a row's last tokens are found on the device: a suffix array.

Shapes: T stored tokens, B rows, M match lengths (m = 1..M), R places, K tokens after each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax.types import Context

BORDER = -1
"""Ends every stored document; no token matches it, and no continuation crosses it."""


@struct.dataclass
class Datastore:
    """Documents one after the other, and the order of all their suffixes.

    ``order`` lists where suffixes begin, sorted by their first ``sorted_length`` tokens: those
    that begin alike lie side by side. ``fingerprint`` says which token map the ids belong to.
    ``specjax.datastore.build`` makes one.
    """

    tokens: Int[Array, " T"]
    order: Int[Array, " T"]
    vocab_size: int = struct.field(pytree_node=False)
    fingerprint: str | None = struct.field(pytree_node=False, default=None)
    sorted_length: int = struct.field(pytree_node=False, default=16)

    def find(
        self, context: Context, longest: int
    ) -> tuple[Int[Array, "B {longest}"], Int[Array, "B {longest}"]]:
        """The range of ``order`` whose suffixes begin with the last m tokens, m = 1..``longest``.

        Binary search, log2(T) steps for all at once; the range is empty where there is none.
        """
        if longest > self.sorted_length:
            raise ValueError(
                f"longest: the store is sorted by {self.sorted_length} tokens, got {longest}; "
                "build it with a larger sorted_length"
            )
        pattern, counts = _patterns(context, longest)
        is_end = jnp.asarray([False, True])[:, None, None]

        def halve(_, bounds):
            low, high = bounds
            middle = low + (high - low) // 2
            sign = self._compare(middle, pattern, counts)
            before = (sign < 0) | (is_end & (sign == 0))
            is_open = low < high
            low = jnp.where(is_open & before, middle + 1, low)
            return low, jnp.where(is_open & ~before, middle, high)

        size = self.order.shape[0]
        low = jnp.zeros((2, *pattern.shape[:2]), jnp.int32)
        low, _ = jax.lax.fori_loop(0, size.bit_length(), halve, (low, jnp.full_like(low, size)))
        long_enough = counts.any(-1) & (context.length[:, None] >= counts.sum(-1))
        return low[0], jnp.where(long_enough, low[1], low[0])

    def _compare(self, at, pattern, counts) -> Int[Array, "2 B M"]:
        """Sign of suffix minus pattern, as far as the pattern goes."""
        ahead = jnp.arange(pattern.shape[-1], dtype=jnp.int32)
        size = self.order.shape[0]
        begin = self.order[jnp.minimum(at, size - 1)]
        text = self.tokens[jnp.minimum(begin[..., None] + ahead, size - 1)]
        sign = jnp.where(counts, jnp.sign(text - pattern), 0)
        return jnp.take_along_axis(sign, (sign != 0).argmax(-1)[..., None], axis=-1)[..., 0]

    def continuations(
        self,
        low: Int[Array, "*B"],
        high: Int[Array, "*B"],
        matched: Int[Array, "*B"],
        num: int,
        ahead: int,
    ) -> tuple[Int[Array, "*B R K"], Bool[Array, "*B R K"], Int[Array, "*B"]]:
        """What follows ``num`` places of a range, ``ahead`` tokens of each, and the range's size.

        Places are evenly spaced, so that continuations come as often as in the whole range,
        nearly; all of them where there are no more than ``num``. None goes beyond its document.
        """
        count = high - low
        step, rest = (count // num)[..., None], (count % num)[..., None]
        place = jnp.arange(num, dtype=jnp.int32)
        spaced = jnp.where(step > 0, place * step + place * rest // num + step // 2, place)
        size = self.order.shape[0]
        begin = self.order[jnp.minimum(low[..., None] + spaced, size - 1)] + matched[..., None]
        source = begin[..., None] + jnp.arange(ahead, dtype=jnp.int32)
        tokens = self.tokens[jnp.minimum(source, size - 1)]  # the last one is a border
        inside = jnp.cumprod(tokens != BORDER, axis=-1, dtype=jnp.int32).astype(bool)
        valid = inside & (spaced < count[..., None])[..., None]
        return jnp.where(valid, tokens, 0), valid, count

    def validate(self, target: Any) -> None:
        """Refuse a target that calls tokens by other ids.

        Raises:
            ValueError: the token maps differ, or (where one is unknown) the vocabulary sizes.
        """
        vocabulary = getattr(getattr(target, "tokenizer", None), "vocabulary", None)
        if self.fingerprint is not None and vocabulary is not None:
            self.require_vocabulary(vocabulary)
        elif self.vocab_size != target.vocab_size:
            raise ValueError(
                f"store: it was built for {self.vocab_size} tokens, the target has "
                f"{target.vocab_size}; build it with the target's vocabulary"
            )

    def require_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Refuse a token map that is not the store's.

        Raises:
            ValueError: they differ, or the store knows none.
        """
        if self.fingerprint != fingerprint_of(vocabulary):
            raise ValueError(
                "store: it was built with another token map than the target's; "
                "build it with the target's tokenizer"
            )


def build(
    documents: Iterable[Sequence[int] | np.ndarray],
    *,
    vocab_size: int,
    fingerprint: str | None = None,
    sorted_length: int = 16,
) -> Datastore:
    """Store documents of token ids, each from 0 to ``vocab_size`` - 1; empty ones are left out.

    Sorts on the host: some ten seconds for ten million tokens.

    >>> store = build([[1, 2, 3], [1, 2, 4]], vocab_size=5)
    >>> low, high = store.find(Context(jnp.asarray([[0, 1, 2]]), jnp.asarray([3])), 2)
    >>> (high - low).tolist()
    [[2, 2]]

    Raises:
        ValueError: there is no token, an id is out of range, or ``sorted_length`` is below 1.
    """
    if isinstance(sorted_length, bool) or not 1 <= int(sorted_length) == sorted_length:
        raise ValueError(f"sorted_length: must be an int from 1 on, got {sorted_length!r}")
    tokens = _joined(documents, vocab_size)
    order = suffix_order(tokens, sorted_length)
    return Datastore(
        jnp.asarray(tokens), jnp.asarray(order), vocab_size, fingerprint, sorted_length
    )


def _joined(documents: Iterable[Sequence[int] | np.ndarray], vocab_size: int) -> np.ndarray:
    """One array of all documents, a border after each."""
    parts, border = [], np.asarray([BORDER], np.int32)
    for number, document in enumerate(documents):
        ids = np.asarray(document)
        if not ids.size:
            continue
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"documents: document {number} must be a sequence of token ids, got an array of "
                f"{ids.dtype} and shape {ids.shape}"
            )
        if ids.min() < 0 or ids.max() >= vocab_size:
            bad = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise ValueError(
                f"documents: document {number} has token id {bad}, outside the vocabulary of "
                f"{vocab_size}"
            )
        parts += [ids.astype(np.int32), border]
    if not parts:
        raise ValueError("documents: there is no token in them; give at least one that has text")
    tokens = np.concatenate(parts)
    if tokens.size >= 2**31:
        raise ValueError("documents: more than 2**31 tokens; give fewer, or make several stores")
    return tokens


def suffix_order(tokens: np.ndarray, sorted_length: int) -> np.ndarray:
    """Where suffixes begin, sorted by ``sorted_length`` tokens; equal ones as they come.

    Prefix doubling (Manber and Myers 1993): a rank by n tokens and the rank n places on make a
    rank by 2n. The text goes on as if borders followed it.

    >>> suffix_order(np.asarray([2, 1, 2, 1, -1]), 4).tolist()
    [4, 3, 1, 2, 0]
    """
    rank = tokens.astype(np.int64) - BORDER + 1
    order = np.argsort(rank, kind="stable")
    length = 1
    while length < sorted_length:
        step = min(length, sorted_length - length)
        rank <<= 32
        rank[:-step] |= rank[step:] >> 32
        order = np.argsort(rank, kind="stable")
        rank = rank[order]
        place = np.cumsum(np.concatenate([[True], rank[1:] != rank[:-1]]))
        rank = np.empty_like(rank)
        rank[order] = place
        length += step
    return order.astype(np.int32)


def fingerprint_of(vocabulary: Mapping[str, int]) -> str:
    """A digest of a token map, equal for tokenizers that number the same tokens alike."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()


def _patterns(
    context: Context, longest: int
) -> tuple[Int[Array, "B {longest} {longest}"], Bool[Array, "{longest} {longest}"]]:
    """The last m tokens of each row for m = 1..``longest``, and which entries count."""
    last = context.window(context.length - longest, longest)
    m = jnp.arange(1, longest + 1, dtype=jnp.int32)[:, None]
    j = jnp.arange(longest, dtype=jnp.int32)
    return last[:, jnp.minimum(longest - m + j, longest - 1)], j < m
