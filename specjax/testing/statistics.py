"""Statistics through the jitted loop: many rows of one prompt, counted and compared with a law."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from specjax import loop, rng
from specjax.request import aligned
from specjax.types import Sampling, State


def sampling_values(
    batch: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    stop_ids: Sequence[int] = (),
) -> Sampling:
    """``Sampling.of``, but at temperature 1."""
    return Sampling.of(
        batch, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, stop_ids=stop_ids
    )


def decode(
    program: loop.Program,
    prompts: Sequence[Sequence[int]],
    num: int,
    *,
    seeds: Sequence[int] | None = None,
    values: Sampling | None = None,
    chunk: int = 4,
    cap: Sequence[int] | None = None,
) -> State:
    """Run the jitted loop on token prompts and return the final state."""
    batch, longest = len(prompts), max(map(len, prompts))
    length = jnp.asarray([len(p) for p in prompts], jnp.int32)
    return _decode(
        program,
        jnp.asarray(aligned(prompts, longest + num)),
        length,
        sampling_values(batch) if values is None else values,
        jnp.asarray(np.asarray(range(batch) if seeds is None else seeds, np.uint32)),
        length + num,
        None if cap is None else jnp.asarray(cap, jnp.int32),
        chunk,
    )


@jax.jit(static_argnames="chunk")
def _decode(program, tokens, length, values, seeds, limit, cap, chunk):
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=values,
        key=rng.row_keys(seeds),
        limit=limit,
        cap=cap,
    )
    return loop.generate(program, state, chunk=chunk)


def num_traces() -> int:
    """How many programs ``decode`` has been traced for so far."""
    return getattr(_decode, "_cache_size")()  # noqa: B009 (jax does not type it)


def sequence_counts(
    program: loop.Program,
    prompt: Sequence[int],
    num: int,
    rows: int,
    *,
    values: Sampling | None = None,
    seed: int = 0,
) -> np.ndarray:
    """How often each continuation of ``num`` tokens came out of ``rows`` rows of the loop."""
    seeds = range(seed, seed + rows)
    state = decode(program, [prompt] * rows, num, seeds=seeds, values=values)
    vocab = program.target.vocab_size
    out = np.asarray(state.context.tokens)[:, len(prompt) : len(prompt) + num]
    cells = out @ (vocab ** np.arange(num)[::-1])
    return np.bincount(cells, minlength=vocab**num).reshape((vocab,) * num)


def chi_square_p(counts: np.ndarray, law: np.ndarray, least: float = 10.0) -> float:
    """p-value of counts under a law; cells expected less than ``least`` times are pooled.

    A sequence of law 0 that occurred gives p = 0: no statistics excuse it.
    """
    counts, expected = counts.ravel().astype(float), law.ravel() * counts.sum()
    if (counts[law.ravel() == 0] > 0).any():
        return 0.0
    small = expected < least
    observed = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    return float(stats.chi2.sf(statistic, max(keep.sum() - 1, 1)))
