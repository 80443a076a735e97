"""All checks of one pair, in turn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.api import Decoder
from specjax.check.acceptance import acceptance, round_law
from specjax.check.caches import drafter_cache, looks, target_cache
from specjax.check.identities import coupled_identity, greedy_identity, self_acceptance
from specjax.check.law import law
from specjax.check.report import Finding, Report
from specjax.check.rows import lay_out
from specjax.check.runs import Runs, judges
from specjax.program import Program
from specjax.prompts import Prompt
from specjax.protocols import Verifier
from specjax.request import Request
from specjax.testing.statistics import sampling_values

PROMPTS = (
    "The keeper climbs the stairs and lights the lamp. The keeper climbs the stairs and lights the",
    "red, green, blue, red, green, blue, red, green, blue, red,",
)
"""They quote themselves, so that a drafter that looks things up has something to find."""

CHECKS = (
    "self_acceptance",
    "greedy_identity",
    "coupled_identity",
    "target_cache",
    "drafter_cache",
    "acceptance",
    "round_law",
    "law",
)

RANGES = {
    "temperature": (1e-3, 1e3, False),
    "top_k": (0, 2**31 - 1, True),
    "top_p": (1e-6, 1, False),
    "min_p": (0, 1, False),
    "num_tokens": (2, 2**20, True),
    "keys": (1, 2**31 - 1, True),
    "tolerance": (1e-12, 10, False),
    "seed": (0, 2**32 - 1, True),
}
"""Least and largest value of each number, and whether it is a whole one."""


def check_pair(
    target: Any,
    drafter: Any,
    *,
    verifier: str | Verifier | None = None,
    prompts: Prompt | Sequence[Prompt] | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    num_tokens: int = 40,
    keys: int = 512,
    tolerance: float = 1e-4,
    seed: int = 0,
    only: Sequence[str] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Report:
    """Check that a drafter speculates exactly on a target, and say with which figures.

    Every prompt is decoded greedily and sampled, under each verifier that may judge the drafter;
    so is the first token of the first prompt alone, the shortest text there is.

    Args:
        target: any ``specjax.protocols.Target``.
        drafter: any ``specjax.protocols.Drafter``, or a broken one.
        verifier: as for ``Decoder``; the test of the law runs under it.
        prompts: text, token ids or chat messages, or a list of such; the law is that of the first.
            Default: two short texts, or repeated random tokens for a target without tokenizer.
        temperature: of the sampled rows, above 0. It and the next three as in ``Decoder.generate``.
        top_k: as in ``Decoder.generate``.
        top_p: as in ``Decoder.generate``.
        min_p: as in ``Decoder.generate``.
        num_tokens: tokens a row.
        keys: draws of the first two tokens.
        tolerance: logits closer than this may change places between passes of other widths; the
            default is for float32, bfloat16 needs about 0.1.
        seed: of the first row and the first key.
        only: names of the checks to run (``CHECKS``); default all.
        note: told what is being run.

    Raises:
        ValueError: an argument is out of range, or the pair cannot run at all.

    Example (minutes, most of them of compiling)::

        report = check_pair(specjax.load("smollm2-135m-instruct"), specjax.drafters.NGram(4))
        report.failed  # () where all is well, else the names of the checks
    """
    decoder = Decoder(target, drafter, verifier=verifier)
    if decoder.program.drafter.num_nodes == 0:
        raise ValueError("drafter: drafts nothing, so there is nothing to check; give a drafter")
    _check_numbers(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        num_tokens=num_tokens,
        keys=keys,
        tolerance=tolerance,
        seed=seed,
    )
    _check_names(only)
    texts = decoder.encode(default_prompts(decoder) if prompts is None else prompts)
    texts.append(texts[0][:1])
    _check_lengths(texts, num_tokens, decoder.max_length)
    program = dataclasses.replace(decoder.program, processors=sampling.FILTERS)
    rows, group = every_row(program, texts, num_tokens, seed, (temperature, top_k, top_p, min_p))
    with jax.default_matmul_precision("highest"):
        runs = Runs(program, rows, group, chunk=decoder.prefill_chunk, note=note)
        checks = _checks(runs, texts[0], keys, tolerance)
        return Report(tuple(checks[name]() for name in CHECKS if only is None or name in only))


def _checks(
    runs: Runs, prompt: list[int], keys: int, tolerance: float
) -> dict[str, Callable[[], Finding]]:
    """Every check by its name, ready to run."""
    compared = functools.cache(lambda: list(looks(runs)))
    return {
        "self_acceptance": lambda: self_acceptance(runs, tolerance),
        "greedy_identity": lambda: greedy_identity(runs, tolerance),
        "coupled_identity": lambda: coupled_identity(runs, tolerance),
        "target_cache": lambda: target_cache(compared(), tolerance),
        "drafter_cache": lambda: drafter_cache(runs, compared(), tolerance),
        "acceptance": lambda: acceptance(runs),
        "round_law": lambda: round_law(runs),
        "law": lambda: law(runs, prompt, keys),
    }


def every_row(
    program: Program, texts: list[list[int]], num_tokens: int, seed: int, law: tuple
) -> tuple[Request, np.ndarray]:
    """Each text greedily and sampled, once for each group; and the group of every row."""
    num = max(2, sum(not rule.coupled for rule in judges(program)))
    group = np.repeat(np.arange(num), 2 * len(texts))
    values = sampling_values(len(group), *law)
    greedy = jnp.asarray(np.arange(len(group)) % (2 * len(texts)) < len(texts))
    values = dataclasses.replace(values, temperature=jnp.where(greedy, 0, values.temperature))
    depth = program.drafter.depth
    return lay_out(texts * 2 * num, num_tokens, values, seed, depth=depth), group


def default_prompts(decoder: Decoder) -> list[Prompt]:
    """Texts that quote themselves, or random tokens twice where there is no tokenizer."""
    if decoder.tokenizer is not None:
        return list(PROMPTS)
    draw = np.random.default_rng(0)
    vocab = decoder.program.target.vocab_size
    return [2 * draw.integers(0, vocab, num).tolist() for num in (6, 9)]


def _check_numbers(**settings: Any) -> None:
    for name, (low, high, whole) in RANGES.items():
        value = settings[name]
        kind = int | np.integer if whole else int | float | np.number
        fits = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
        if not fits:
            raise ValueError(
                f"{name}: must be {'an int' if whole else 'a number'} from {low:g} to {high:g}, "
                f"got {value!r}"
            )


def _check_lengths(texts: list[list[int]], num_tokens: int, longest: int | None) -> None:
    needed = max(map(len, texts)) + num_tokens
    if longest is not None and needed > longest:
        raise ValueError(
            f"prompts: the longest and num_tokens={num_tokens} come to {needed} tokens, beyond "
            f"the target's {longest}; shorten it, or lower num_tokens"
        )


def _check_names(only: Sequence[str] | None) -> None:
    for name in only or ():
        if name not in CHECKS:
            raise ValueError(f"only: there is no check {name!r}; there are {', '.join(CHECKS)}")
