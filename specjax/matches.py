"""Where a text has ended like this before, and how it went on: found on the device.

The text of a row is its context up to ``length``. A match of n tokens at a place says that the n
tokens up to and including the place are the text's last n; the text's own end is none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.types import Context


def match_lengths(context: Context, longest: int) -> Int[Array, "B L"]:
    """How many of the text's last tokens end at each place, at most ``longest``.

    >>> text = Context(jnp.asarray([[1, 2, 3, 2, 1, 2]]), jnp.asarray([6]))
    >>> match_lengths(text, 3).tolist()
    [[0, 2, 0, 1, 0, 0]]
    """
    tokens, length = context.tokens, context.length[:, None]
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    run = jnp.zeros_like(tokens)
    going = place < length - 1  # never the text's own end
    for back in range(longest):
        last = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0), axis=1)
        earlier = jnp.pad(tokens, ((0, 0), (back, 0)))[:, : tokens.shape[1]]
        going = going & (earlier == last) & (place >= back)
        run = run + going.astype(jnp.int32)
    return run


def longest_match(context: Context, longest: int) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Length of the longest match of each row, and its place.

    Of equally long ones the most recent; (0, 0) where there is none.
    """
    run = match_lengths(context, longest)
    place = jnp.arange(run.shape[1], dtype=jnp.int32)
    score = run * run.shape[1] + place
    at = jnp.where(run > 0, score, -1).argmax(1).astype(jnp.int32)
    return jnp.take_along_axis(run, at[:, None], axis=1)[:, 0], at


def best_matches(
    context: Context, longest: int, num: int, ahead: int
) -> tuple[Int[Array, "B R K"], Bool[Array, "B R K"], Int[Array, "B R"]]:
    """What followed the ``num`` best matches, ``ahead`` tokens of each, and their lengths.

    The longest come first, of equally long ones the most recent. A continuation ends where the
    text does.
    """
    run = match_lengths(context, longest)
    place = jnp.arange(run.shape[1], dtype=jnp.int32)
    score = run.astype(jnp.float32) * run.shape[1] + place.astype(jnp.float32)
    at, found = _highest(jnp.where(run > 0, score, -1), num)
    tokens, valid = continuations(context, at, ahead)
    matched = jnp.take_along_axis(run, at, axis=1)
    return tokens, valid & found[..., None], jnp.where(found, matched, 0)


def recent_matches(
    context: Context, longest: int, num: int, ahead: int
) -> tuple[Int[Array, "B M R K"], Bool[Array, "B M R K"]]:
    """What followed the ``num`` most recent matches of at least m tokens, m = 1..``longest``."""
    run = match_lengths(context, longest)[:, None]
    place = jnp.arange(run.shape[2], dtype=jnp.float32)
    least = jnp.arange(1, longest + 1, dtype=jnp.int32)[:, None]
    at, found = _highest(jnp.where(run >= least, place, -1), num)
    flat = at.reshape(at.shape[0], -1)
    tokens, valid = continuations(context, flat, ahead)
    shape = (*at.shape, ahead)
    return tokens.reshape(shape), valid.reshape(shape) & found[..., None]


def continuations(
    context: Context, at: Int[Array, "B R"], ahead: int
) -> tuple[Int[Array, "B R K"], Bool[Array, "B R K"]]:
    """The tokens after each place, as far as the text goes."""
    source = at[..., None] + 1 + jnp.arange(ahead, dtype=jnp.int32)
    within = jnp.minimum(source, context.tokens.shape[1] - 1).reshape(at.shape[0], -1)
    tokens = jnp.take_along_axis(context.tokens, within, axis=1).reshape(source.shape)
    return tokens, source < context.length[:, None, None]


def _highest(
    score: Float[Array, "*B L"], num: int
) -> tuple[Int[Array, "*B R"], Bool[Array, "*B R"]]:
    """The places of the ``num`` highest scores that are not negative, and whether there are any.

    Scores are floats, since top_k of integers sorts them all on a CPU; beyond 2**24 their
    rounding can only mistake which of two equally long matches is the later.
    """
    few = max(num - score.shape[-1], 0)
    score = jnp.pad(score, [(0, 0)] * (score.ndim - 1) + [(0, few)], constant_values=-1)
    value, at = jax.lax.top_k(score, num)
    return jnp.where(value >= 0, at, 0).astype(jnp.int32), value >= 0
