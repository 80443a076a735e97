"""The conformance suite of targets: what the loop relies on, each as a function that raises.

Run all with ``check_target(target)``, or one by one::

    @pytest.mark.parametrize("check", TARGET_CHECKS)
    def test_my_target(check):
        check(my_target)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax import tree

TOLERANCE = 1e-4
"""Largest difference of logits between passes of different widths, in float32."""


def _tokens(target: Any, batch: int, num: int) -> Int[Array, "B T"]:
    drawn = np.random.default_rng(0).integers(0, target.vocab_size, (batch, num))
    return jnp.asarray(drawn, jnp.int32)


def pass_over(target: Any, tokens, start, cache, count=None, **kwargs):
    """Logits and cache after one pass."""
    count = jnp.full(tokens.shape[0], tokens.shape[1], jnp.int32) if count is None else count
    with jax.default_matmul_precision("highest"):
        logits, cache = _pass(target, tokens, start, cache, count, kwargs)
    return np.asarray(logits), cache


@jax.jit
def _pass(target, tokens, start, cache, count, kwargs):
    hidden, cache, _ = target.extend(tokens, start, cache, count=count, **kwargs)
    return target.unembed(hidden), cache


def _starts(batch: int, at: int) -> Int[Array, " B"]:
    return jnp.full(batch, at, jnp.int32)


def _close(found, expected, what: str) -> None:
    difference = np.abs(found - expected).max()
    assert difference <= TOLERANCE, f"{what}: logits differ by {difference:.2e}"


def one_pass_equals_many(target: Any) -> None:
    """A pass over T positions gives what T passes over one give."""
    tokens = _tokens(target, 2, 6)
    whole, _ = pass_over(target, tokens, _starts(2, 0), target.init_cache(2, 8))
    cache, parts = target.init_cache(2, 8), []
    for t in range(6):
        logits, cache = pass_over(target, tokens[:, t : t + 1], _starts(2, t), cache)
        parts.append(logits)
    _close(np.concatenate(parts, axis=1), whole, "T passes over one against one over T")


def later_tokens_change_nothing_earlier(target: Any) -> None:
    """Logits depend on what came before, never on what comes after."""
    tokens = _tokens(target, 2, 6)
    changed = tokens.at[:, 3:].set((tokens[:, 3:] + 1) % target.vocab_size)
    before, _ = pass_over(target, tokens, _starts(2, 0), target.init_cache(2, 8))
    after, _ = pass_over(target, changed, _starts(2, 0), target.init_cache(2, 8))
    _close(after[:, :3], before[:, :3], "earlier positions after later ones changed")


def scratch_is_never_read(target: Any) -> None:
    """Whatever lies in slots at or beyond the committed ones changes nothing."""
    tokens = _tokens(target, 2, 4)
    _, cache = pass_over(target, tokens, _starts(2, 0), target.init_cache(2, 12))
    rejected = _tokens(target, 2, 3)
    _, used = pass_over(target, rejected, _starts(2, 4), cache)
    poisoned = jax.tree.map(lambda x: x.at[:, 4:].set(10**9), cache)
    clean, _ = pass_over(target, tokens[:, :2], _starts(2, 4), cache)
    for what, other in (("rejected drafts", used), ("poison", poisoned)):
        logits, _ = pass_over(target, tokens[:, :2], _starts(2, 4), other)
        _close(logits, clean, f"{what} in scratch slots")


def nothing_is_written_beyond_count(target: Any) -> None:
    """A row of count n writes n slots; one of count 0 none at all."""
    tokens = _tokens(target, 3, 4)
    cache = jax.tree.map(lambda x: jnp.full_like(x, 7), target.init_cache(3, 10))
    count = jnp.asarray([0, 2, 4], jnp.int32)
    _, after = pass_over(target, tokens, jnp.asarray([0, 1, 2], jnp.int32), cache, count)
    for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        changed = np.asarray(old != new).reshape(3, 10, -1).any(-1)
        allowed = np.array(
            [[False] * 10, [1 <= s < 3 for s in range(10)], [s >= 2 for s in range(10)]]
        )
        allowed[2, 6:] = False
        assert not (changed & ~allowed).any(), "a slot outside start..start + count - 1 was written"


def tree_paths_are_chains(target: Any) -> None:
    """Each node of a tree sees its own ancestors only, and compaction makes a path committed."""
    prompt, nodes = _tokens(target, 1, 3), _tokens(target, 1, 5)
    parent = jnp.asarray([[0, 0, 1, 2]], jnp.int32)  # two branches of two nodes
    _, cache = pass_over(target, prompt, _starts(1, 0), target.init_cache(1, 16))
    logits, grown = pass_over(
        target,
        nodes,
        _starts(1, 3),
        cache,
        positions=3 + tree.depths(parent),
        mask=tree.ancestors(parent),
    )
    for path in ([0, 1, 3], [0, 2, 4]):
        chain = nodes[:, jnp.asarray(path)]
        alone, _ = pass_over(target, chain, _starts(1, 3), cache)
        _close(logits[:, path], alone, f"tree path {path} against a chain")
        moved = grown.compact(_starts(1, 3), jnp.asarray([path[1:]], jnp.int32))
        after, _ = pass_over(target, prompt, _starts(1, 6), moved)
        _, committed = pass_over(target, chain, _starts(1, 3), cache)
        expected, _ = pass_over(target, prompt, _starts(1, 6), committed)
        _close(after, expected, f"after compacting path {path}")


def insert_moves_one_row(target: Any) -> None:
    """A row prefilled on its own goes on the same in a batch."""
    tokens = _tokens(target, 3, 4)
    _, batch = pass_over(target, tokens, _starts(3, 0), target.init_cache(3, 8))
    _, one = pass_over(target, tokens[:1] * 0, _starts(1, 0), target.init_cache(1, 8))
    joined = batch.insert(1, one)
    logits, _ = pass_over(target, tokens[:, :1], _starts(3, 4), joined)
    alone, _ = pass_over(target, tokens[1:2, :1], _starts(1, 4), one)
    others, _ = pass_over(target, tokens[:, :1], _starts(3, 4), batch)
    _close(logits[1:2], alone, "the inserted row")
    _close(logits[[0, 2]], others[[0, 2]], "its neighbours")


TARGET_CHECKS = (
    one_pass_equals_many,
    later_tokens_change_nothing_earlier,
    scratch_is_never_read,
    nothing_is_written_beyond_count,
    tree_paths_are_chains,
    insert_moves_one_row,
)


def check_target(target: Any) -> list[str]:
    """Run every check and return their names.

    Raises:
        AssertionError: a promise of ``specjax.protocols.Target`` is broken, and which.
    """
    for check in TARGET_CHECKS:
        check(target)
    return [check.__name__ for check in TARGET_CHECKS]
