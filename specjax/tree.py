"""Geometry of a draft: depths, paths and ancestor masks, all from the parent pointers.

Node 0 is the newest token; node i (1..N) has ``parent[:, i - 1] < i``. A chain has
``parent = 0, 1, ..., N - 1``. A topology is a tree that never changes: the parents of its nodes
as a static tuple, level by level, siblings in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped


def chain_parents(batch: int, num_nodes: int) -> Int[Array, "B N"]:
    """Parents of a chain."""
    return jnp.broadcast_to(jnp.arange(num_nodes, dtype=jnp.int32), (batch, num_nodes))


def from_branching(branching: Sequence[int]) -> tuple[int, ...]:
    """Topology of a tree in which every node of level i has ``branching[i]`` children.

    Raises:
        ValueError: no level, or one without children.

    >>> from_branching((2, 1))
    (0, 0, 1, 2)
    """
    if not branching or not all(_is_whole(b) and b >= 1 for b in branching):
        raise ValueError(
            f"branching: must be the children of a node of each level, all at least 1, such as "
            f"(3, 2, 1); got {branching!r}"
        )
    parents, level = [], [0]
    for num in branching:
        first = len(parents) + 1
        parents += [node for node in level for _ in range(num)]
        level = list(range(first, len(parents) + 1))
    return tuple(parents)


def from_paths(paths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Topology of the nodes that ``paths`` name, in any order, each by the ranks of its ancestors.

    (1, 0) is the first child of the second child of the root: the choices of Cai et al. 2024
    (Medusa). A node needs its parent and its elder siblings, so that ranks stay what they are.

    Raises:
        ValueError: a path is no such thing or comes twice, or a node is missing.

    >>> from_paths([(0,), (0, 0), (1,), (0, 1), (1, 0)])
    (0, 0, 1, 1, 2)
    """
    chosen: list[tuple[int, ...]] = [tuple(path) for path in paths]
    for path in chosen:
        if not path or not all(_is_whole(rank) and rank >= 0 for rank in path):
            raise ValueError(
                f"paths: must be tuples of ranks from 0 on, such as (0, 1); got {path}"
            )
        if chosen.count(path) > 1:
            raise ValueError(f"paths: {path} comes twice; name each node once")
        *above, rank = path
        parent, elder = tuple(above), (*above, rank - 1)
        for other in ([parent] if above else []) + ([elder] if rank else []):
            if other not in chosen:
                raise ValueError(f"paths: {path} comes without {other}; add that, too")
    order = [(), *sorted(chosen, key=lambda path: (len(path), path))]
    return tuple(order.index(path[:-1]) for path in order[1:])


def parents(topology: Sequence[int], batch: int) -> Int[Array, "B N"]:
    """Parents of a topology, the same in every row.

    Raises:
        ValueError: a parent does not come before its child.
    """
    _check(topology)
    row = jnp.asarray(topology, jnp.int32).reshape(-1)
    return jnp.broadcast_to(row, (batch, len(topology)))


def depth_of(topology: Sequence[int]) -> int:
    """Depth of the deepest node of a topology.

    Raises:
        ValueError: a parent does not come before its child.

    >>> depth_of((0, 0, 1, 2))
    2
    """
    _check(topology)
    levels = [0]
    for parent in topology:
        levels.append(levels[parent] + 1)
    return max(levels)


def _check(topology: Sequence[int]) -> None:
    for node, parent in enumerate(topology, start=1):
        if not _is_whole(parent) or not 0 <= parent < node:
            raise ValueError(
                f"topology: the parent of node {node} must be one of 0..{node - 1}, got {parent!r}"
            )


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def ancestors(parent: Int[Array, "B N"]) -> Bool[Array, "B M M"]:
    """Say for each node which nodes lie on its path from the root, itself included."""
    nodes = jnp.arange(parent.shape[1] + 1, dtype=jnp.int32)
    above = jnp.pad(parent, ((0, 0), (1, 0)))  # the root stands above itself
    seen = (nodes[:, None] == nodes) | (above[..., None] == nodes)
    for _ in range(max(0, parent.shape[1] - 1).bit_length()):  # twice as far up each time
        steps = seen.astype(jnp.float32)
        seen = steps @ steps > 0
    return seen


def fed_from(
    parent: Int[Array, "B N"], start: Int[Array, " B"]
) -> dict[str, Int[Array, "B M"] | Bool[Array, "B M M"]]:
    """What a target is told of a tree whose root is at position ``start``: positions and mask."""
    return {"positions": start[:, None] + depths(parent), "mask": ancestors(parent)}


def depths(parent: Int[Array, "B N"]) -> Int[Array, "B M"]:
    """Distance of each node from the root."""
    return ancestors(parent).sum(-1, dtype=jnp.int32) - 1


def reachable(parent: Int[Array, "B N"], valid: Bool[Array, "B N"]) -> Bool[Array, "B N"]:
    """Whether a node and all above it are valid: what can be accepted at all."""
    blocked = ancestors(parent)[:, 1:, 1:] & ~valid[:, None]
    return ~blocked.any(-1)


def paths(parent: Int[Array, "B N"], depth: int) -> Int[Array, "B M K"]:
    """Nodes at depths 1..K on the way to each node, its own last; 0 beyond its own depth."""
    seen = ancestors(parent)
    level = jnp.where(seen, depths(parent)[:, None, :], 0)
    nodes = jnp.arange(seen.shape[-1], dtype=jnp.int32)
    at_depth = level[..., None, :] == jnp.arange(1, depth + 1, dtype=jnp.int32)[:, None]
    return jnp.where(at_depth, nodes, 0).sum(-1)


def at_nodes(
    values: Shaped[Array, "B M ..."], nodes: Int[Array, "B E"]
) -> Shaped[Array, "B E ..."]:
    """Values of some nodes of each row."""
    return jax.vmap(lambda row, at: row[at])(values, nodes)


def path_tokens(tokens: Int[Array, "B N"], path: Int[Array, "B *M"]) -> Int[Array, "B *M"]:
    """Token of each node on a path; node 0, which pads a path, gives 0."""
    padded = jnp.pad(tokens, ((0, 0), (1, 0)))
    rows = jnp.arange(tokens.shape[0]).reshape(-1, *[1] * (path.ndim - 1))
    return padded[rows, path]


def follow(
    draft_tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    valid: Bool[Array, "B N"],
    tokens: Int[Array, "B K"],
) -> tuple[Int[Array, "B K"], Int[Array, " B"]]:
    """Walk down a tree along ``tokens``: the nodes met, and how many before none fits.

    Of fitting siblings the first is taken, and only valid nodes fit. Beyond ``num`` the path goes
    on with j + 1, which moves nothing when a cache is compacted along it.

    >>> draft, parent = jnp.array([[5, 6, 7, 8]]), jnp.array([[0, 0, 1, 2]])
    >>> path, num = follow(draft, parent, jnp.ones((1, 4), bool), jnp.array([[6, 8, 9]]))
    >>> path.tolist(), num.tolist()
    ([[2, 4, 3]], [2])
    """
    batch, depth = tokens.shape
    at, num = jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32)
    path = chain_parents(batch, depth) + 1
    for j in range(depth if parent.shape[1] else 0):
        fits = valid & (parent == at[:, None]) & (draft_tokens == tokens[:, j, None])
        on = fits.any(1) & (num == j)
        at = jnp.where(on, fits.argmax(1).astype(jnp.int32) + 1, at)
        path = path.at[:, j].set(jnp.where(on, at, path[:, j]))
        num = num + on.astype(jnp.int32)
    return path, num
