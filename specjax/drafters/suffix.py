"""Suffix scoring: of all match lengths, draft from the one that promises most accepted tokens."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import tree, trie
from specjax.datastore import Datastore
from specjax.drafters.chain import Chain, at_least_one
from specjax.drafters.retrieval import check_store, nodes_of
from specjax.matches import recent_matches
from specjax.protocols import Draw
from specjax.types import Context, Draft

SCORES = (1.0, 2.0, 4.0)
"""Expected numbers of accepted tokens that part the kinds of drafts."""


@struct.dataclass
class Suffix(Chain):
    """Draft as long as the past says that it pays (Oliaro et al. 2024, SuffixDecoding).

    For each match length m up to ``max_match``, in the row's own text and in ``store``, go from
    most frequent token to most frequent token while its conditional probability is at least
    ``floor``, for at most ``factor`` * m tokens. The m with the largest expected number of
    accepted tokens (the sum of the products of those probabilities) makes the draft, and how long
    it is. Probabilities are counted over ``num_places`` places: the most recent of the text, and
    an even sample of the store's. ``num_nodes`` above ``draft_length`` makes a tree of that m's
    most frequent continuations instead.
    Point masses: nothing is lost under coupled verification.
    The kind of a draft says how many accepted tokens it promises: none, then up to 1, 2, 4, more.
    """

    draft_length: int = struct.field(pytree_node=False, default=8)
    max_match: int = struct.field(pytree_node=False, default=8)
    store: Datastore | None = None
    floor: float = struct.field(pytree_node=False, default=0.1)
    factor: float = struct.field(pytree_node=False, default=2.0)
    num_nodes: int = struct.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        pytree_node=False, default=None
    )
    num_places: int = struct.field(pytree_node=False, default=32)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("max_match", self.max_match)
        at_least_one("num_places", self.num_places)
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor: must be a probability from 0 to 1, got {self.floor}")
        if not self.factor * self.max_match >= 1:
            raise ValueError(
                f"factor: allows no token even at max_match ({self.factor} * {self.max_match} is "
                "below 1); raise it"
            )
        object.__setattr__(self, "num_nodes", nodes_of(self.num_nodes, self.draft_length))

    @property
    def num_kinds(self) -> int:
        return len(SCORES) + 2

    def validate(self, target: Any) -> None:
        """Go with any target, or with those of the store's vocabulary.

        Raises:
            ValueError: the store is for another vocabulary, or not sorted by ``max_match`` tokens.
        """
        if self.store is not None:
            check_store(self.store, self.max_match, target)

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Draft from the most promising match; nothing where there is none."""
        tokens, valid = self._candidates(context, width)
        path, found, score = self._paths(tokens, valid)
        best = score.argmax(1).astype(jnp.int32)
        kind = (score.max(1)[:, None] > jnp.asarray((0.0, *SCORES), score.dtype)).sum(
            1, dtype=jnp.int32
        )
        ahead = jnp.arange(width, dtype=jnp.int32)
        allowed = draw.active[:, None] & (ahead < draw.cap[:, None])
        if self.num_nodes == self.draft_length:
            parent = tree.chain_parents(best.shape[0], width)
            draft = Draft(_of_row(path, best), parent, _of_row(found, best) & allowed, kind=kind)
            return draft, state, cache
        tokens, valid = _of_row(tokens, best), _of_row(valid, best) & allowed[:, None]
        weight = jnp.ones(tokens.shape[:2], jnp.float32)
        nodes, parent, found, _ = trie.merge(tokens, valid, weight, self.num_nodes)
        return Draft(nodes, parent, found, kind=kind), state, cache

    def _candidates(
        self, context: Context, ahead: int
    ) -> tuple[Int[Array, "B M R K"], Bool[Array, "B M R K"]]:
        """What followed matches of M lengths, the longest first, as far as each may be drafted."""
        sources = [recent_matches(context, self.max_match, self.num_places, ahead)]
        matched = jnp.arange(1, self.max_match + 1, dtype=jnp.int32)
        if self.store is not None:
            low, high = self.store.find(context, self.max_match)
            each = jnp.broadcast_to(matched, low.shape)
            sources.append(self.store.continuations(low, high, each, self.num_places, ahead)[:2])
        most = jnp.floor(self.factor * matched.astype(jnp.float32)).astype(jnp.int32)
        within = jnp.arange(ahead, dtype=jnp.int32) < most[:, None]
        tokens, valid = (jnp.concatenate(x, axis=1) for x in zip(*sources, strict=True))
        valid = valid & jnp.tile(within, (len(sources), 1))[:, None]
        # At equal promise the longer match wins, which is the more particular one.
        longest_first = jnp.argsort(-jnp.tile(matched, len(sources)), stable=True)
        return tokens[:, longest_first], valid[:, longest_first]

    def _paths(
        self, tokens: Int[Array, "B M R K"], valid: Bool[Array, "B M R K"]
    ) -> tuple[Int[Array, "B M K"], Bool[Array, "B M K"], Float[Array, "B M"]]:
        """The most frequent path of each match length, and how much of it should be accepted."""
        lead, (places, depth) = tokens.shape[:2], tokens.shape[2:]
        flat = (lead[0] * lead[1], places, depth)
        weight = jnp.ones(flat[:2], jnp.float32)
        path, found, share = trie.heaviest_path(tokens.reshape(flat), valid.reshape(flat), weight)
        kept = jnp.cumprod(found & (share >= self.floor), axis=1, dtype=jnp.int32)
        score = (jnp.cumprod(share, axis=1) * kept.astype(share.dtype)).sum(1)
        shape = (*lead, depth)
        return path.reshape(shape), kept.astype(bool).reshape(shape), score.reshape(lead)


def _of_row(values: Array, index: Int[Array, " B"]) -> Array:
    """One entry along axis 1 for each row."""
    return values[jnp.arange(index.shape[0]), index]
