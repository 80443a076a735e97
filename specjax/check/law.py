"""The first two tokens of one prompt over many keys, against the target by teacher forcing."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import rng
from specjax.check.acceptance import SIZE
from specjax.check.report import Finding
from specjax.check.rows import lay_out
from specjax.check.runs import Runs, rule_name
from specjax.check.watch import next_logits
from specjax.program import Program
from specjax.request import Request
from specjax.sampling import softmax
from specjax.testing.statistics import chi_square_p
from specjax.types import State

NUM = 2
FIRST, SECOND = 8, 5
"""The likeliest first tokens, and of each the likeliest second ones, have cells of their own."""


@dataclasses.dataclass(frozen=True)
class Cells:
    """A partition of all pairs of tokens, and the law of its cells.

    ``law[i, j]`` is that of first[i] then second[i, j], ``law[i, -1]`` of first[i] and any other
    token, and ``rest`` of any other first token.
    """

    first: np.ndarray
    second: np.ndarray
    law: np.ndarray
    rest: float

    def flat_law(self) -> np.ndarray:
        """The law of all cells in a row, that of the rest last."""
        return np.append(self.law.ravel(), self.rest)

    def counts(self, pairs: np.ndarray) -> np.ndarray:
        """How many of the pairs lie in each cell, in the order of ``flat_law``."""
        inner = np.zeros(self.law.shape, int)
        for i, token in enumerate(self.first):
            after = pairs[pairs[:, 0] == token, 1]
            equal = after[:, None] == self.second[i]
            inner[i] = [*equal.sum(0), (~equal.any(1)).sum()]
        return np.append(inner.ravel(), len(pairs) - inner.sum())


def law(runs: Runs, prompt: list[int], keys: int) -> Finding:
    """Chi-square of the first two tokens, under the chosen verifier.

    Half of the keys draft a single token, so that where it is kept the second one is the bonus;
    the others draft as far as the drafter goes.
    """
    verifier = runs.program.verifier
    rule = rule_name(verifier)
    if not verifier.exact:
        return Finding("law", None, {}, f"{rule} says of itself that it changes the law")
    runs.note(f"running {keys} keys under {rule}")
    cells, start = cells_after(runs, prompt), prefilled(runs, prompt)
    program = runs.judged_by(verifier, alone=True)
    lengths = sorted({1, program.drafter.depth})
    counts = {}
    for number, cap in enumerate(lengths):
        capped = dataclasses.replace(start, cap=jnp.full_like(start.cap, cap))
        seeds = np.arange(number, keys, len(lengths)) + int(runs.rows.seeds[0])
        counts[cap] = cells.counts(sample_pairs(runs, program, capped, seeds % 2**32))
    return _finding(rule, cells, counts)


def _finding(rule: str, cells: Cells, counts: dict[int, np.ndarray]) -> Finding:
    expected = cells.flat_law() / cells.flat_law().sum()
    p = {f"draft_length_{cap}": chi_square_p(found, expected) for cap, found in counts.items()}
    every = np.sum(list(counts.values()), axis=0)
    inner = every[:-1].reshape(cells.law.shape).sum(1)
    figures: dict[str, Any] = {
        "verifier": rule,
        "keys": int(every.sum()),
        "p": p,
        "first_tokens": cells.first[:4].tolist(),
        "measured": (inner / every.sum())[:4].tolist(),
        "expected": cells.law.sum(1)[:4].tolist(),
    }
    wrong = [name for name, value in p.items() if value < SIZE]
    return Finding(
        "law",
        not wrong,
        figures,
        f"biased at {wrong[0]}: the first two tokens do not follow the target's own "
        "probabilities; the verifier is wrong, or the drafter's recorded law is"
        if wrong
        else "the first two tokens follow the target's own probabilities",
    )


def cells_after(runs: Runs, prompt: list[int]) -> Cells:
    """Cells around the likeliest pairs, with the law that two passes of the target give them."""
    num = min(FIRST, runs.program.target.vocab_size, len(runs.group))
    rows = _repeated(runs, prompt)
    p = _laws(runs, rows)[0]
    first = np.argsort(-p)[:num]
    tokens = np.array(rows.tokens)
    tokens[:num, len(prompt)] = first
    rows = dataclasses.replace(rows, tokens=jnp.asarray(tokens), length=rows.length + 1)
    after = _laws(runs, rows)[:num]
    likeliest = np.argsort(-after, axis=1)[:, :SECOND]
    inner = np.take_along_axis(after, likeliest, axis=1)
    # Summed, not 1 - the others: what is forbidden must have a law of exactly 0.
    np.put_along_axis(after, likeliest, 0, axis=1)
    inner = np.concatenate([inner, after.sum(1, keepdims=True)], axis=1)
    return Cells(first, likeliest, p[first, None] * inner, float(np.delete(p, first).sum()))


def _laws(runs: Runs, rows: Request) -> np.ndarray:
    logits = next_logits(runs.program, rows.tokens, rows.length, rows.sampling)
    return np.asarray(softmax(logits), np.float64)


def prefilled(runs: Runs, prompt: list[int]) -> State:
    """As many rows as every run has, all of them the prompt, with a budget of two tokens."""
    return runs.begin(_repeated(runs, prompt))


def _repeated(runs: Runs, prompt: list[int]) -> Request:
    """The prompt in all rows, laid out as the runs are, so that their programs serve it."""
    batch, capacity = runs.rows.tokens.shape
    at = int(np.flatnonzero(~runs.greedy)[0])
    values = jax.tree.map(lambda x: x[at : at + 1], runs.rows.sampling)
    rows = lay_out(
        [prompt] * batch, capacity - len(prompt), values, 0, depth=runs.program.drafter.depth
    )
    return dataclasses.replace(rows, limit=rows.length + NUM)


def sample_pairs(runs: Runs, program: Program, start: State, seeds: np.ndarray) -> np.ndarray:
    """The first two tokens of each seed: the same rows with other keys."""
    begin, batch = int(start.context.length[0]), len(runs.group)
    found = []
    for at in range(0, len(seeds), batch):
        padded = np.resize(seeds[at : at + batch], batch)
        keys = rng.row_keys(jnp.asarray(padded, jnp.uint32))
        state, _ = runs.watch(program, dataclasses.replace(start, key=keys), NUM)
        found.append(np.asarray(state.context.tokens)[:, begin : begin + NUM])
    return np.concatenate(found)[: len(seeds)]
