"""The conformance suite of targets: what the loop relies on, each as a function that raises.

Run all with ``check_target(target)``, or one by one::

    @pytest.mark.parametrize("check", TARGET_CHECKS)
    def test_my_target(check):
        check(my_target)

All checks feed the same few shapes, since compiling is most of what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax import tree

TOLERANCE = 1e-4
"""Largest difference of logits between passes of different widths, in float32."""

ROWS, WIDTH, SLOTS = 3, 6, 96


def _tokens(target: Any, num: int) -> Int[Array, "B T"]:
    drawn = np.random.default_rng(0).integers(0, target.vocab_size, (ROWS, num))
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


def _feed(target: Any, tokens, start: int | Sequence[int], cache, count=None, **shape):
    """A pass over up to WIDTH tokens of each row; what ``count`` leaves out is padding."""
    rows, num = tokens.shape
    padded = jnp.pad(tokens, ((0, 0), (0, WIDTH - num)))
    at = jnp.broadcast_to(jnp.asarray(start, jnp.int32), (rows,))
    count = jnp.broadcast_to(jnp.asarray(num if count is None else count, jnp.int32), (rows,))
    logits, cache = pass_over(target, padded, at, cache, count, **shape)
    return logits[:, :num], cache


def _close(found, expected, what: str) -> None:
    difference = np.abs(found - expected).max()
    assert difference <= TOLERANCE, f"{what}: logits differ by {difference:.2e}"


def one_pass_equals_many(target: Any) -> None:
    """A pass over T positions gives what T passes over one give."""
    tokens = _tokens(target, WIDTH)
    whole, _ = _feed(target, tokens, 0, target.init_cache(ROWS, SLOTS))
    cache, parts = target.init_cache(ROWS, SLOTS), []
    for t in range(WIDTH):
        at = jnp.full(ROWS, t, jnp.int32)
        logits, cache = pass_over(target, tokens[:, t : t + 1], at, cache)
        parts.append(logits)
    _close(np.concatenate(parts, axis=1), whole, "one pass against one token at a time")


def later_tokens_change_nothing_earlier(target: Any) -> None:
    """Attention is causal."""
    tokens = _tokens(target, WIDTH)
    changed = tokens.at[:, 4:].set((tokens[:, 4:] + 1) % target.vocab_size)
    first, _ = _feed(target, tokens, 0, target.init_cache(ROWS, SLOTS))
    second, _ = _feed(target, changed, 0, target.init_cache(ROWS, SLOTS))
    _close(second[:, :4], first[:, :4], "earlier logits when later ones changed")


def scratch_is_never_read(target: Any) -> None:
    """Whatever lies in slots at or beyond the committed ones changes nothing."""
    tokens = _tokens(target, 4)
    _, cache = _feed(target, tokens, 0, target.init_cache(ROWS, SLOTS))
    _, used = _feed(target, tokens[:, 1:], 4, cache)
    poisoned = jax.tree.map(lambda x: x.at[:, 4:].set(10**9), cache)
    clean, _ = _feed(target, tokens[:, :2], 4, cache)
    for what, other in (("rejected drafts", used), ("poison", poisoned)):
        logits, _ = _feed(target, tokens[:, :2], 4, other)
        _close(logits, clean, f"{what} in scratch slots")


def nothing_is_written_beyond_count(target: Any) -> None:
    """A row of count n writes n slots; one of count 0 none at all."""
    start, count = [0, 1, 2], [0, 2, 4]
    cache = jax.tree.map(lambda x: jnp.full_like(x, 7), target.init_cache(ROWS, SLOTS))
    _, after = _feed(target, _tokens(target, WIDTH), start, cache, count)
    for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        if old.shape[1] != SLOTS:
            continue  # a counter, no slots
        changed = (np.asarray(old) != np.asarray(new)).reshape(ROWS, SLOTS, -1).any(-1)
        place = np.arange(SLOTS)
        for row, (first, num) in enumerate(zip(start, count, strict=True)):
            outside = (place < first) | (place >= first + num)
            assert not changed[row, outside].any(), (
                "a slot outside start..start + count - 1 was written"
            )


def _branches(at) -> dict[str, Any]:
    """Two branches of two nodes, and one node of padding; ``at`` is where the root lies."""
    parent = jnp.asarray([[0, 0, 1, 2, 0]] * ROWS, jnp.int32)
    at = jnp.broadcast_to(jnp.asarray(at, jnp.int32), (ROWS,))
    return {"positions": at[:, None] + tree.depths(parent), "mask": tree.ancestors(parent)}


def tree_paths_are_chains(target: Any) -> None:
    """Each node of a tree sees its own ancestors only, and compaction makes a path committed."""
    prompt, nodes = _tokens(target, 3), _tokens(target, 5)
    _, cache = _feed(target, prompt, 0, target.init_cache(ROWS, SLOTS))
    logits, grown = _feed(target, nodes, 3, cache, **_branches(3))
    for path in ([0, 1, 3], [0, 2, 4]):
        chain = nodes[:, jnp.asarray(path)]
        alone, committed = _feed(target, chain, 3, cache)
        _close(logits[:, path], alone, f"tree path {path} against a chain")
        at, kept = jnp.full(ROWS, 3, jnp.int32), jnp.asarray([path[1:]] * ROWS, jnp.int32)
        after, _ = _feed(target, prompt, 6, grown.compact(at, kept))
        expected, _ = _feed(target, prompt, 6, committed)
        _close(after, expected, f"after compacting path {path}")


def insert_moves_one_row(target: Any) -> None:
    """A row prefilled on its own goes on the same in a batch."""
    tokens = _tokens(target, 4)
    _, batch = _feed(target, tokens, 0, target.init_cache(ROWS, SLOTS))
    _, one = _feed(target, tokens[:1] * 0, 0, target.init_cache(1, SLOTS))
    logits, _ = _feed(target, tokens[:, :1], 4, batch.insert(1, one))
    alone, _ = _feed(target, tokens[1:2, :1], 4, one)
    others, _ = _feed(target, tokens[:, :1], 4, batch)
    _close(logits[1:2], alone, "the inserted row")
    _close(logits[[0, 2]], others[[0, 2]], "its neighbours")


def a_promise_of_scratch_changes_nothing(target: Any) -> None:
    """A cache that may forget answers like one that keeps all: ragged, rewound, in trees."""
    caches = [target.init_cache(ROWS, SLOTS, scratch=s) for s in (None, WIDTH)]
    start, tokens = np.array([0, 0, 0]), _tokens(target, WIDTH)

    def compare(count: int, **shape) -> None:
        found = [_feed(target, tokens, start.tolist(), x, count, **shape) for x in caches]
        caches[:] = [cache for _, cache in found]
        (expected, _), (logits, _) = found
        _close(logits[:, :count], expected[:, :count], f"rows at {start}, scratch={WIDTH}")

    for _ in range(18):
        compare(WIDTH)
        start = start + np.array([4, 3, 1])  # the rest is rejected
    compare(5, **_branches(start))
    at = jnp.asarray(start, jnp.int32)
    path = jnp.asarray([[2, 4], [1, 3], [1, 3]], jnp.int32)
    caches[:] = [cache.compact(at, path) for cache in caches]
    start = start + 3
    compare(WIDTH)


TARGET_CHECKS = (
    one_pass_equals_many,
    later_tokens_change_nothing_earlier,
    scratch_is_never_read,
    nothing_is_written_beyond_count,
    tree_paths_are_chains,
    insert_moves_one_row,
    a_promise_of_scratch_changes_nothing,
)


def check_target(target: Any) -> list[str]:
    """Run every check and return their names.

    Raises:
        AssertionError: a promise of ``specjax.protocols.Target`` is broken, and which.
    """
    for check in TARGET_CHECKS:
        check(target)
    return [check.__name__ for check in TARGET_CHECKS]
