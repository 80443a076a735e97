"""The conformance suite of drafters: whether one is exact, and what else the loop relies on.

Run all with ``check_drafter(drafter, target)``, or one by one::

    @pytest.mark.parametrize("check", DRAFTER_CHECKS)
    def test_my_drafter(check):
        check(MyDrafter(4), TableLM.random(jax.random.key(0), 4))
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from specjax import loop
from specjax.drafters import Plain
from specjax.protocols import Cache, Verifier
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import (
    chi_square_p,
    decode,
    num_traces,
    sampling_values,
    sequence_counts,
)
from specjax.testing.target_checks import pass_over
from specjax.types import RUNNING, State
from specjax.verify import Block, Coupled, Token

NUM = 12


def verifiers(drafter: Any) -> list[Verifier]:
    """The shipped rules that may judge this drafter."""
    chain = drafter.num_nodes == drafter.depth
    return [v for v in (Token(), Block(), Coupled()) if chain or v.branching]


def _prompts(target: Any) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, target.vocab_size, n).tolist() for n in (1, 2, 5, 9)]


def _run(
    target: Any, drafter: Any, verifier: Verifier, temperature: float, rows=None, **parts: Any
) -> State:
    prompts = _prompts(target)
    rows = range(len(prompts)) if rows is None else rows
    values = sampling_values(len(rows), temperature)
    program = loop.Program(target, drafter, verifier, **parts)
    with jax.default_matmul_precision("highest"):
        return decode(program, [prompts[r] for r in rows], NUM, seeds=list(rows), values=values)


def _plain(target: Any, drafter: Any, temperature: float) -> list[list[int]]:
    """Plain decoding through passes as wide as the drafter's, so that no rounding differs."""
    return _texts(_run(target, Plain(drafter.num_nodes), Coupled(), temperature))


def _texts(state: State) -> list[list[int]]:
    tokens, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
    return [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]


def greedy_is_plain_greedy(drafter: Any, target: Any, **parts: Any) -> None:
    """At temperature 0 every verifier gives the target's very tokens."""
    plain = _plain(target, drafter, 0.0)
    for verifier in verifiers(drafter):
        assert _texts(_run(target, drafter, verifier, 0.0, **parts)) == plain, (
            f"greedy under {verifier}"
        )


def coupled_is_plain_sampling(drafter: Any, target: Any, **parts: Any) -> None:
    """Under coupled verification a seed gives the tokens of plain sampling."""
    plain = _plain(target, drafter, 1.0)
    assert _texts(_run(target, drafter, Coupled(), 1.0, **parts)) == plain, (
        "coupled differs from plain"
    )


def law_is_kept(drafter: Any, target: Any, rows: int = 20_000, **parts: Any) -> None:
    """Sequences over several rounds follow the target's law; the target has few tokens."""
    prompt = [1, 0, 1]
    law = sequence_law(target, prompt, 3, sampling_values(1))
    for verifier in verifiers(drafter):
        program = loop.Program(target, drafter, verifier, **parts)
        counts = sequence_counts(program, prompt, 3, rows)
        p = chi_square_p(counts, law)
        assert p > 1e-6, f"biased under {verifier}: p = {p:.1e} over {rows} rows"


def rows_are_independent(drafter: Any, target: Any, **parts: Any) -> None:
    """A row decodes the same alone and beside others, where the drafter says so."""
    rules = verifiers(drafter) if drafter.rows_independent else [Coupled()]
    for verifier in rules:
        together = _texts(_run(target, drafter, verifier, 1.0, **parts))
        alone = _texts(_run(target, drafter, verifier, 1.0, rows=[2], **parts))
        assert together[2] == alone[0], f"a row depends on its neighbours under {verifier}"


def values_do_not_retrace(drafter: Any, target: Any, **parts: Any) -> None:
    """New temperatures, rows and seeds of the same shape compile nothing."""
    traces = []
    for temperature, rows in ((1.0, (0, 3)), (0.5, (3, 2)), (0.0, (1, 3))):
        _run(target, drafter, Coupled(), temperature, rows=rows, **parts)
        traces.append(num_traces())
    assert len(set(traces)) == 1, "new values were traced anew"


def counters_equal_tokens(drafter: Any, target: Any, **parts: Any) -> None:
    """Every emitted token is counted once, and every row ends within its budget."""
    state = _run(target, drafter, verifiers(drafter)[0], 1.0, **parts)
    stats = jax.tree.map(np.asarray, state.stats)
    kept = stats.outcomes.sum(1) @ np.arange(stats.outcomes.shape[1])
    assert (stats.rounds + kept == NUM).all(), "counters differ from the tokens emitted"
    assert (np.asarray(state.finish) != RUNNING).all(), "a row did not finish"


def cache_equals_a_fresh_prefill(drafter: Any, target: Any, **parts: Any) -> None:
    """After any rounds, the target's next logits are those of a cache filled anew."""
    state = _run(target, drafter, verifiers(drafter)[0], 1.0, **parts)
    context = state.context
    batch, capacity = context.tokens.shape
    count = context.length - 1
    empty = target.init_cache(batch, capacity + 1)
    _, fresh = pass_over(target, context.tokens, 0 * count, empty, count)
    ours, _ = pass_over(target, context.newest(), count, state.cache)
    theirs, _ = pass_over(target, context.newest(), count, fresh)
    difference = np.abs(ours - theirs).max()
    assert difference < 1e-4, f"the cache after the rounds is not the text's: {difference:.2e}"


def state_is_made_of_rows(drafter: Any, target: Any, **parts: Any) -> None:
    """Every leaf of the state has the rows first, and no two are one array (donation fails)."""
    state = drafter.init(target, 3, 16)
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Cache))
    for leaf in leaves:
        for array in jax.tree.leaves(leaf):
            assert array.shape[:1] == (3,), f"a leaf of shape {array.shape} has no rows"
    arrays = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]
    assert len({id(x) for x in arrays}) == len(arrays), "two leaves are the same array"


DRAFTER_CHECKS = (
    greedy_is_plain_greedy,
    coupled_is_plain_sampling,
    law_is_kept,
    rows_are_independent,
    values_do_not_retrace,
    counters_equal_tokens,
    cache_equals_a_fresh_prefill,
    state_is_made_of_rows,
)


def check_drafter(drafter: Any, target: Any, **parts: Any) -> list[str]:
    """Run every check and return their names; ``parts`` go to each ``Program``, as policies do.

    The law is checked where the target is small enough to enumerate: at most 8 tokens, such as
    ``TableLM.random(key, 4)``. Compiling takes most of a minute.

    Raises:
        AssertionError: a promise of ``specjax.protocols.Drafter`` is broken, and which.
    """
    checks = [c for c in DRAFTER_CHECKS if c is not law_is_kept or target.vocab_size <= 8]
    for check in checks:
        check(drafter, target, **parts)
    return [check.__name__ for check in checks]
