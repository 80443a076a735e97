"""Exact laws by enumeration: of a target's sequences, and of what a verifier emits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, tree
from specjax.protocols import Processor
from specjax.types import Draft, Sampling

Laws = Sequence[np.ndarray]
"""Laws after every prefix: entry n has shape (V,) * (n + 1), the prefix first."""


def every_sequence(vocab_size: int, num: int) -> np.ndarray:
    """All sequences of ``num`` tokens, in the order of a C-contiguous array of that shape."""
    return np.array(list(itertools.product(range(vocab_size), repeat=num)), np.int32)


def sequence_law(
    target: Any,
    prompt: Sequence[int],
    num: int,
    values: Sampling,
    processors: tuple[Processor, ...] = sampling.FILTERS,
) -> np.ndarray:
    """Probability of every continuation of ``num`` tokens, as an array of shape (V,) * num.

    ``values`` holds one row. Independent of the loop: one causal pass over all continuations.
    """
    rows = every_sequence(target.vocab_size, num)
    tokens = jnp.concatenate(
        [jnp.broadcast_to(jnp.asarray(prompt, jnp.int32), (len(rows), len(prompt))), rows], axis=1
    )
    first = jnp.zeros(len(rows), jnp.int32)
    count = jnp.full_like(first, tokens.shape[1])
    cache = target.init_cache(*tokens.shape)
    hidden, _, _ = target.extend(tokens, first, cache, count=count)
    logits = target.unembed(hidden)[:, len(prompt) - 1 : -1]
    values = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(rows), *x.shape[1:])), values)
    states = sampling.start_processors(processors, tokens, first + len(prompt), values)
    path = jnp.broadcast_to(tokens[:, None, len(prompt) :], (len(rows), num, num))
    depth = jnp.broadcast_to(jnp.arange(num, dtype=jnp.int32), (len(rows), num))
    processed = sampling.process(processors, states, values, logits, path, depth)
    greedy = jnp.broadcast_to(values.temperature[:, None] == 0, depth.shape)
    laws = np.asarray(sampling.law(processed, greedy), np.float64)
    chosen = np.take_along_axis(laws, rows[..., None], axis=-1)[..., 0]
    return chosen.prod(1).reshape((target.vocab_size,) * num)


def emitted_law(
    verifier: Any,
    parent: Sequence[int],
    target_law: Laws,
    draft_law: Laws | None,
    *,
    point_mass: np.ndarray | None = None,
    recorded: Laws | None = None,
) -> np.ndarray:
    """Law of the first depth + 1 tokens after one round, summed over all drafts and all coins.

    ``target_law[n][prefix]`` is the target's law after a prefix of n tokens, n = 0..depth, and
    ``draft_law[n]`` likewise, n = 0..depth - 1. Siblings are drawn independently.
    ``point_mass`` gives fixed draft tokens instead; ``recorded`` is what the draft claims as its
    law when that differs from ``draft_law`` (a planted fault). The coins are found, not assumed:
    each node's acceptance threshold is bisected on the shipped function.
    """
    vocab = target_law[0].shape[-1]
    tokens = every_sequence(vocab, len(parent)) if point_mass is None else point_mass[None]
    batch = len(tokens)
    parents = np.broadcast_to(np.asarray(parent, np.int32), tokens.shape)
    depth = int(np.asarray(tree.depths(jnp.asarray(parents)))[0].max())
    nodes = np.asarray(tree.paths(jnp.asarray(parents), depth))
    path = np.asarray(tree.path_tokens(jnp.asarray(tokens), jnp.asarray(nodes)))
    levels = np.asarray(tree.depths(jnp.asarray(parents)))[0]
    p = _laws_at(target_law, path, levels)
    q = None if draft_law is None else _laws_at(draft_law, path, levels, parents[0])
    claimed = q if recorded is None else _laws_at(recorded, path, levels, parents[0])
    draft = Draft(
        jnp.asarray(tokens),
        jnp.asarray(parents),
        jnp.ones(tokens.shape, bool),
        None if claimed is None else jnp.asarray(claimed),
    )
    accept = jax.jit(lambda coins: verifier.accept(draft, jnp.asarray(p), coins))
    weight = np.ones(batch)
    if q is not None:
        weight = np.take_along_axis(q, tokens[..., None], axis=-1)[..., 0].prod(1)
    thresholds = _thresholds(accept, nodes, levels, batch)
    total = np.zeros((vocab,) * (depth + 1))
    for cell in itertools.product((False, True), repeat=len(parent)):
        passed = np.asarray(cell)
        chance = np.where(passed, thresholds, 1 - thresholds).prod(1)
        coins = np.where(passed, thresholds / 2, (1 + thresholds) / 2)
        verdict = accept(jnp.asarray(coins))
        _add(total, weight * chance, verdict, tokens, target_law)
    return total


def _laws_at(laws, path, levels, parent=None) -> np.ndarray:
    """Law after each node, or (with ``parent``) the law that each node 1.. was drawn from."""
    columns = range(len(levels)) if parent is None else parent
    return np.stack(
        [
            laws[levels[c]][tuple(path[:, c, : levels[c]].T)] * np.ones((len(path), 1))
            for c in columns
        ],
        axis=1,
    )


def _thresholds(accept, nodes, levels, batch) -> np.ndarray:
    """Largest coin at which each node is accepted, its ancestors passing and all others failing."""
    num = len(levels) - 1
    found = np.zeros((batch, num))
    for node in range(1, num + 1):
        line = nodes[0, node, : levels[node]]
        low, high = np.zeros(batch), np.ones(batch)
        for _ in range(60):
            middle = (low + high) / 2
            coins = np.full((batch, num), np.inf)
            coins[:, line - 1] = 0.0
            coins[:, node - 1] = middle
            verdict = accept(jnp.asarray(coins))
            reached = np.asarray(verdict.num_accepted) >= levels[node]
            reached &= np.asarray(verdict.path)[:, levels[node] - 1] == node
            low, high = np.where(reached, middle, low), np.where(reached, high, middle)
        found[:, node - 1] = np.where(high > 1 - 1e-15, 1.0, np.where(low < 1e-15, 0.0, low))
    return found


def _add(total, chance, verdict, tokens, target_law) -> None:
    """Add one cell: the accepted prefix, the law of the next token, then the target's own."""
    vocab = total.shape[-1]
    path, num = np.asarray(verdict.path), np.asarray(verdict.num_accepted)
    last = np.asarray(verdict.last)
    for row in np.flatnonzero(chance):
        prefix = tuple(tokens[row, path[row, : num[row]] - 1])
        for y in range(vocab):
            _complete(total, (*prefix, y), chance[row] * last[row, y], target_law)


def _complete(total, prefix, mass, target_law) -> None:
    if mass == 0:
        return
    if len(prefix) == total.ndim:
        total[prefix] += mass
        return
    for y, p in enumerate(target_law[len(prefix)][prefix]):
        _complete(total, (*prefix, y), mass * p, target_law)


def product_law(target_law: Laws) -> np.ndarray:
    """Joint law of depth + 1 tokens under the target alone."""
    joint = target_law[0]
    for law in target_law[1:]:
        joint = joint[..., None] * law
    return joint


def random_laws(
    rng: np.random.Generator, vocab_size: int, lengths: int, zeros: float = 0.0
) -> list[np.ndarray]:
    """Random laws after every prefix of 0..lengths-1 tokens; ``zeros`` of the entries are 0."""
    laws = []
    for length in range(lengths):
        shape = (vocab_size,) * (length + 1)
        raw = rng.exponential(size=shape) ** 2 * (rng.random(shape) >= zeros)
        raw[..., 0] += raw.sum(-1) == 0
        laws.append(raw / raw.sum(-1, keepdims=True))
    return laws
