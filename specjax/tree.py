"""Geometry of a draft: depths, paths and ancestor masks, all from the parent pointers.

Node 0 is the newest token; node i (1..N) has ``parent[:, i - 1] < i``. A chain has
``parent = 0, 1, ..., N - 1``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped


def chain_parents(batch: int, num_nodes: int) -> Int[Array, "B N"]:
    """Parents of a chain."""
    return jnp.broadcast_to(jnp.arange(num_nodes, dtype=jnp.int32), (batch, num_nodes))


def ancestors(parent: Int[Array, "B N"]) -> Bool[Array, "B M M"]:
    """Say for each node which nodes lie on its path from the root, itself included."""
    batch, num = parent.shape
    seen = jnp.broadcast_to(jnp.eye(num + 1, dtype=bool), (batch, num + 1, num + 1))
    rows = jnp.arange(batch)
    for node in range(1, num + 1):
        inherited = seen[rows, parent[:, node - 1]]
        seen = seen.at[:, node].set(seen[:, node] | inherited)
    return seen


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
