"""Candidate continuations put together: what they share is one node, as heavy as all that share it.

Shapes: B rows, R candidates, K tokens of each, N nodes. ``valid`` says how many of a candidate's
tokens count: a prefix of them. Weights are not negative; a candidate of weight 0 is none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def merge(
    candidates: Int[Array, "B R K"],
    valid: Bool[Array, "B R K"],
    weight: Float[Array, "B R"],
    num_nodes: int,
) -> tuple[
    Int[Array, "B N"],
    Int[Array, "B N"],
    Bool[Array, "B N"],
    Float[Array, "B N"],
]:
    """Make a draft tree of the heaviest prefixes: their tokens, parents, validity and weights.

    No parent is lighter than its child, so the heaviest nodes are a tree; of equally heavy ones
    the shallower is kept, then that of the earlier candidate. Nodes come level by level, the
    heaviest of a level first; nodes that pad the tree come last, with parent 0.

    >>> texts = jnp.asarray([[[1, 2], [1, 3], [1, 3]]])
    >>> tokens, parent, _, weight = merge(texts, texts > 0, jnp.ones((1, 3)), 3)
    >>> tokens.tolist(), parent.tolist(), weight.tolist()
    ([[1, 3, 2]], [[0, 1, 1]], [[3.0, 2.0, 1.0]])
    """
    batch, num, depth = candidates.shape
    valid = valid & (weight > 0)[..., None]
    same = _same_prefix(candidates, valid)
    first = same.argmax(2).astype(jnp.int32)  # the earliest candidate with this prefix
    is_node = valid & (first == jnp.arange(num, dtype=jnp.int32)[:, None])
    total = jnp.where(same, weight[:, None, :, None], 0).sum(2)
    total = jax.lax.cummin(total, axis=2)  # whatever the rounding of the sums
    # Level by level, so that top_k, which prefers what comes first, prefers the shallower.
    rank = jnp.where(is_node, total, -1).swapaxes(1, 2).reshape(batch, depth * num)
    rank = jnp.pad(rank, ((0, 0), (0, num_nodes)), constant_values=-1)
    heavy, place = jax.lax.top_k(rank, num_nodes)
    kept = heavy > 0
    level = jnp.where(kept, place.astype(jnp.int32) // num, depth)
    by_level = jnp.argsort(level, axis=1, stable=True).astype(jnp.int32)
    heavy, kept, place = (_take(x, by_level) for x in (heavy, kept, place.astype(jnp.int32)))
    place = jnp.where(kept, place, 0)
    tokens = _take(candidates.swapaxes(1, 2).reshape(batch, -1), place)
    above = _take(first.swapaxes(1, 2).reshape(batch, -1), jnp.maximum(place - num, 0))
    above = above + (place // num - 1) * num
    parent = (place[:, None] == above[..., None]).argmax(2).astype(jnp.int32) + 1
    parent = jnp.where(kept & (place >= num), parent, 0)
    return jnp.where(kept, tokens, 0), parent, kept, jnp.maximum(heavy, 0)


def heaviest_path(
    candidates: Int[Array, "B R K"], valid: Bool[Array, "B R K"], weight: Float[Array, "B R"]
) -> tuple[Int[Array, "B K"], Bool[Array, "B K"], Float[Array, "B K"]]:
    """Go from the root to the heaviest child each time: the tokens, how many, and their shares.

    A share is the child's part of the weight of all children: its probability given its parent.
    Of equally heavy children the one of the earliest candidate.

    >>> texts = jnp.asarray([[[1, 2], [1, 3], [1, 3], [1, 3]]])
    >>> [x.tolist() for x in heaviest_path(texts, texts > 0, jnp.ones((1, 4)))]
    [[[1, 3]], [[True, True]], [[1.0, 0.75]]]
    """

    def descend(on, level):
        token, here = level
        on = on & here
        own = jnp.where(on, weight, 0)
        same = token[:, :, None] == token[:, None]
        total = jnp.where(on, jnp.where(same, own[:, None], 0).sum(2), -1)
        best = total.argmax(1).astype(jnp.int32)[:, None]
        chosen, most = _take(token, best), _take(total, best)[:, 0]
        share = jnp.where(most > 0, most / jnp.maximum(own.sum(1), most), 0)
        return on & (token == chosen), (jnp.where(most > 0, chosen[:, 0], 0), most > 0, share)

    levels = jnp.moveaxis(candidates, 2, 0), jnp.moveaxis(valid, 2, 0)
    _, (tokens, found, share) = jax.lax.scan(descend, weight > 0, levels)
    return tokens.T, found.T, share.T


def _same_prefix(
    candidates: Int[Array, "B R K"], valid: Bool[Array, "B R K"]
) -> Bool[Array, "B R R K"]:
    """Whether two candidates have their first k tokens in common, for every k from 1 on."""
    both = valid[:, :, None] & valid[:, None]
    same = both & (candidates[:, :, None] == candidates[:, None])
    return jnp.cumprod(same, axis=3, dtype=jnp.int32).astype(bool)


def _take(values, index):
    return jnp.take_along_axis(values, index, axis=1, mode="clip")
