"""Retrieval: how a text like this went on most often, in a store and in the text itself."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax import tree, trie
from specjax.datastore import Datastore
from specjax.drafters.chain import Chain, at_least_one
from specjax.matches import best_matches
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Retrieval(Chain):
    """Copy the most frequent continuations of the longest match (He et al. 2023, REST).

    Matches are looked for in ``store`` and, with ``own``, in what the row itself has read and
    written, which grows. Up to ``num_places`` places of each are merged. Those of shorter matches
    only fill what the longest leave open. ``num_nodes`` above ``draft_length`` makes a tree;
    otherwise the draft is the path of most frequent tokens.
    Point masses: nothing is lost under coupled verification.
    The kind of a draft is the number of binary digits of its match's length.
    """

    store: Datastore
    draft_length: int = struct.field(pytree_node=False, default=4)
    num_nodes: int = struct.field(  # pyright: ignore[reportIncompatibleMethodOverride]
        pytree_node=False, default=None
    )
    max_match: int = struct.field(pytree_node=False, default=8)
    min_match: int = struct.field(pytree_node=False, default=2)
    num_places: int = struct.field(pytree_node=False, default=32)
    own: bool = struct.field(pytree_node=False, default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_match", "min_match", "num_places"):
            at_least_one(name, getattr(self, name))
        if self.min_match > self.max_match:
            raise ValueError(
                f"min_match: must be at most max_match, got {self.min_match} and {self.max_match}"
            )
        object.__setattr__(self, "num_nodes", nodes_of(self.num_nodes, self.draft_length))

    @property
    def num_kinds(self) -> int:
        return self.max_match.bit_length() + 1

    def validate(self, target: Any) -> None:
        """Refuse a target of another vocabulary than the store's.

        Raises:
            ValueError: the token maps differ, or (where one is unknown) the vocabulary sizes; or
                ``store`` is no store, or not sorted by ``max_match`` tokens.
        """
        check_store(self.store, self.max_match, target)

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Draft what followed the longest match; nothing where it is shorter than the least."""
        tokens, valid, matched = self._candidates(context, width)
        longest = matched.max(1)
        ahead = jnp.arange(width, dtype=jnp.int32)
        allowed = draw.active[:, None] & (ahead < draw.cap[:, None])
        valid = valid & (matched >= self.min_match)[..., None] & allowed[:, None]
        # All places of a shorter match together weigh less than one of a longer.
        weight = (1.0 / (2 * tokens.shape[1])) ** (longest[:, None] - matched).astype(jnp.float32)
        kind = binary_digits(jnp.where(longest >= self.min_match, longest, 0), self.max_match)
        if self.num_nodes == self.draft_length:
            path, found, _ = trie.heaviest_path(tokens, valid, weight)
            parent = tree.chain_parents(path.shape[0], width)
            return Draft(path, parent, found, kind=kind), state, cache
        nodes, parent, found, _ = trie.merge(tokens, valid, weight, self.num_nodes)
        return Draft(nodes, parent, found, kind=kind), state, cache

    def _candidates(
        self, context: Context, ahead: int
    ) -> tuple[Int[Array, "B R K"], Bool[Array, "B R K"], Int[Array, "B R"]]:
        """Continuations from the store and of the row itself, and how long their matches are."""
        low, high = self.store.find(context, self.max_match)
        longest = (high > low).sum(1, dtype=jnp.int32)  # what m tokens match, fewer match as well
        at = jnp.maximum(longest - 1, 0)[:, None]
        low, high = (jnp.take_along_axis(x, at, axis=1)[:, 0] for x in (low, high))
        tokens, valid, _ = self.store.continuations(low, high, longest, self.num_places, ahead)
        matched = jnp.broadcast_to(longest[:, None], tokens.shape[:2])
        if not self.own:
            return tokens, valid, matched
        own = best_matches(context, self.max_match, self.num_places, ahead)
        return (
            jnp.concatenate([own[0], tokens], axis=1),
            jnp.concatenate([own[1], valid], axis=1),
            jnp.concatenate([own[2], matched], axis=1),
        )


def binary_digits(number: Int[Array, "*B"], most: int) -> Int[Array, "*B"]:
    """How many binary digits a number up to ``most`` has, 0 for 0.

    >>> binary_digits(jnp.arange(9, dtype=jnp.int32), 8).tolist()
    [0, 1, 2, 2, 3, 3, 3, 3, 4]
    """
    powers = jnp.asarray([2**i for i in range(most.bit_length())], jnp.int32)
    return (number[..., None] >= powers).sum(-1, dtype=jnp.int32)


def nodes_of(num_nodes: Any, draft_length: int) -> int:
    """The number of nodes, a chain's if None.

    Raises:
        ValueError: it is no int, or less than the depth.
    """
    if num_nodes is None:
        return draft_length
    at_least_one("num_nodes", num_nodes)
    if num_nodes < draft_length:
        raise ValueError(
            f"num_nodes: must be at least draft_length, got {num_nodes} and {draft_length}"
        )
    return num_nodes


def check_store(store: Any, max_match: int, target: Any) -> None:
    """Raise ValueError unless ``store`` finds matches of ``max_match`` tokens for ``target``."""
    if not isinstance(store, Datastore):
        raise ValueError(
            f"store: must be a Datastore, got {type(store).__name__}; "
            "specjax.datastore.build makes one"
        )
    if max_match > store.sorted_length:
        raise ValueError(
            f"max_match: the store is sorted by {store.sorted_length} tokens, got {max_match}; "
            "lower it, or build the store with a larger sorted_length"
        )
    store.validate(target)
