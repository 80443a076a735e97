"""Exact laws by enumeration: of a target's sequences, and of what a verifier emits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
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
    without_replacement: bool = False,
) -> np.ndarray:
    """Law of the first depth + 1 tokens after one round, summed over all drafts and all coins.

    ``target_law[n][prefix]`` is the target's law after a prefix of n tokens, n = 0..depth, and
    ``draft_law[n]`` likewise, n = 0..depth - 1. Siblings are drawn independently, or
    ``without_replacement``. ``point_mass`` gives fixed draft tokens instead; ``recorded`` is what
    the draft claims as its law when that is not what it was drawn from (a planted fault). The
    coins are found, not assumed: each node's acceptance threshold is bisected on the shipped
    function.
    """
    vocab, num = target_law[0].shape[-1], len(parent)
    tokens = every_sequence(vocab, num) if point_mass is None else point_mass[None]
    shape = Shape.of(parent, tokens)
    p = shape.after(target_law)
    q = None if draft_law is None else shape.drawn_from(draft_law, without_replacement)
    claimed = q if recorded is None else shape.drawn_from(recorded)
    weight, valid = _chances(q, tokens)
    draft = Draft(
        jnp.asarray(tokens),
        jnp.broadcast_to(jnp.asarray(parent, jnp.int32), tokens.shape),
        jnp.asarray(valid),
        None if claimed is None else jnp.asarray(claimed),
    )
    accept = partial(_accept, verifier, draft, jnp.asarray(p))
    thresholds = _thresholds(accept, shape, len(tokens))
    emitted = [np.zeros((vocab,) * (n + 1)) for n in range(shape.depth + 1)]
    for cell in itertools.product((False, True), repeat=num):
        passed = np.asarray(cell)
        chance = np.where(passed, thresholds, 1 - thresholds).prod(1)
        coins = np.where(passed, thresholds / 2, (1 + thresholds) / 2)
        _add(emitted, weight * chance, accept(jnp.asarray(coins)), tokens)
    return _completed(emitted, target_law)


@partial(jax.jit, static_argnums=0)
def _accept(verifier, draft, p, coins):
    """One program for every law and every cell of coins."""
    return verifier.accept(draft, p, coins)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A tree and the tokens of every draft on it; node 0 is the root."""

    parent: Sequence[int]
    tokens: np.ndarray
    lines: list[list[int]]
    """Nodes on the way to each node, its own last."""

    @classmethod
    def of(cls, parent: Sequence[int], tokens: np.ndarray) -> Shape:
        lines: list[list[int]] = [[]]
        for node, above in enumerate(parent, 1):
            lines.append([*lines[above], node])
        return cls(parent, tokens, lines)

    @property
    def depth(self) -> int:
        return max(map(len, self.lines))

    def after(self, laws: Laws, nodes: Sequence[int] | None = None) -> np.ndarray:
        """Law after each node, given the tokens on the way to it."""
        nodes = range(len(self.lines)) if nodes is None else nodes
        ones = np.ones((len(self.tokens), 1))
        lines = [self.lines[node] for node in nodes]
        return np.stack(
            [laws[len(x)][tuple(self.tokens[:, i - 1] for i in x)] * ones for x in lines], axis=1
        )

    def drawn_from(self, laws: Laws, without_replacement: bool = False) -> np.ndarray:
        """Law of each node 1..; one that its earlier siblings leave no token is all zero."""
        q = self.after(laws, self.parent)
        if not without_replacement:
            return q
        for node, earlier in itertools.permutations(range(len(self.parent)), 2):
            if earlier < node and self.parent[earlier] == self.parent[node]:
                np.put_along_axis(q[:, node], self.tokens[:, earlier, None], 0, axis=-1)
        total = q.sum(-1, keepdims=True)
        return np.divide(q, total, out=np.zeros_like(q), where=total > 0)


def _chances(q: np.ndarray | None, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each draft, and its valid nodes; one beyond its law's support holds 0."""
    if q is None:
        return np.ones(len(tokens)), np.ones(tokens.shape, bool)
    valid = q.sum(-1) > 0
    drawn = np.take_along_axis(q, tokens[..., None], axis=-1)[..., 0]
    return np.where(valid, drawn, tokens == 0).prod(1), valid


def _thresholds(accept, shape, batch) -> np.ndarray:
    """Largest coin at which each node is accepted, its ancestors passing and all others failing."""
    num = len(shape.parent)
    found = np.zeros((batch, num))
    for node, line in enumerate(shape.lines[1:], 1):
        low, high = np.zeros(batch), np.ones(batch)
        for _ in range(60):
            middle = (low + high) / 2
            coins = np.full((batch, num), np.inf)
            coins[:, np.asarray(line) - 1] = 0.0
            coins[:, node - 1] = middle
            verdict = accept(jnp.asarray(coins))
            reached = np.asarray(verdict.num_accepted) >= len(line)
            reached &= np.asarray(verdict.path)[:, len(line) - 1] == node
            low, high = np.where(reached, middle, low), np.where(reached, high, middle)
        found[:, node - 1] = np.where(high > 1 - 1e-15, 1.0, np.where(low < 1e-15, 0.0, low))
    return found


def _add(emitted, chance, verdict, tokens) -> None:
    """Add one cell: ``emitted[n]`` gains the accepted prefixes of n tokens and the token after."""
    path, num = np.asarray(verdict.path), np.asarray(verdict.num_accepted)
    mass = chance[:, None] * np.asarray(verdict.last)
    for n, total in enumerate(emitted):
        rows = np.flatnonzero((num == n) & (chance > 0))
        prefix = np.take_along_axis(tokens[rows], path[rows, :n] - 1, axis=1)
        cell = prefix @ mass.shape[1] ** np.arange(n, dtype=int)[::-1]
        np.add.at(total.reshape(-1, mass.shape[1]), cell, mass[rows])


def _completed(emitted, target_law) -> np.ndarray:
    """Let the target go on where a round emitted fewer than depth + 1 tokens."""
    total = emitted[0]
    for law, more in zip(target_law[1:], emitted[1:], strict=True):
        total = total[..., None] * law + more
    return total


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
