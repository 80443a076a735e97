"""From logits to the law that is sampled: processors, filters, and one way to draw.

Every value is a leaf with one entry a row. Nothing sorts the vocabulary: a filter's threshold
is found by bisection, in a loop that runs zero times where the filter is off.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.nn import wide
from specjax.protocols import FollowsPaths, Processor
from specjax.types import Sampling


def softmax(logits: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
    """Normalise in at least float32; a row of -inf gives zeros, not NaN."""
    logits = logits.astype(wide(logits.dtype))
    top = logits.max(-1, keepdims=True)
    weight = jnp.exp(logits - jnp.where(jnp.isfinite(top), top, 0))
    total = weight.sum(-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


def law(logits: Float[Array, "*B V"], greedy: Bool[Array, "*B"]) -> Float[Array, "*B V"]:
    """Turn processed logits into the law they are drawn from; a greedy row's is a point mass."""
    probs = softmax(logits)
    best = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=probs.dtype)
    best = jnp.where(probs.sum(-1, keepdims=True) > 0, best, 0)
    return jnp.where(greedy[..., None], best, probs)


def perturb(
    logits: Float[Array, "*B V"], noise: Float[Array, "*B V"], greedy: Bool[Array, "*B"]
) -> Float[Array, "*B V"]:
    """Add Gumbel noise, so that the argmax is a draw (Gumbel-max); greedy rows get none."""
    return logits + jnp.where(greedy[..., None], 0, noise).astype(logits.dtype)


def _ordered_bits(x: Float[Array, " V"]) -> Int[Array, " V"]:
    """Map float32 to int32 so that the order is kept: bisection then ends after 32 halvings."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    bits = jnp.where(bits == jnp.int32(-(2**31)), 0, bits)  # -0.0 ties with 0.0
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def keep_heaviest(
    logits: Float[Array, " V"],
    weight: Float[Array, " V"],
    least: Float[Array, ""],
    on: Bool[Array, ""],
) -> Float[Array, " V"]:
    """Mask all but the largest logits whose weights together reach ``least``.

    Ties at the threshold are all kept. With weight 1 and least k this is top-k; with
    probabilities and least p it is the nucleus.
    """
    bits = _ordered_bits(logits)
    least = least.astype(weight.dtype)

    def halve(bounds):
        low, high = bounds  # the answer is the largest t in [low, high) that keeps enough
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # low + high would overflow
        enough = jnp.where(bits >= middle, weight, 0).sum() >= least
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    top = bits.max()
    bounds = (jnp.where(on, bits.min(), top), top + 1)
    threshold, _ = jax.lax.while_loop(lambda b: b[0] + 1 < b[1], halve, bounds)
    return jnp.where(on & (bits < threshold), -jnp.inf, logits)


class Stateless:
    """Base of processors that look at nothing but the logits and the row's values."""

    def init(self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling) -> tuple:
        return ()

    def advance(self, h: tuple, token: Int[Array, ""]) -> tuple:
        return h


@struct.dataclass
class Temperature(Stateless):
    """Divide by the temperature; at 0 leave the logits, since ``law`` then takes the argmax.

    Below 1e-30 the law has long been a point mass. Where the largest quotient would still
    overflow, the largest logit is subtracted first: an infinite one would make NaN of the law.
    """

    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]:
        heat = jnp.where(row.temperature > 0, jnp.maximum(row.temperature, 1e-30), 1)
        heat, top = heat.astype(logits.dtype), logits.max()
        overflows = jnp.isfinite(top) & ~jnp.isfinite(top / heat)
        return (logits - jnp.where(overflows, top, 0)) / heat


@struct.dataclass
class TopK(Stateless):
    """Keep the k largest logits (ties at the k-th included); 0 keeps all."""

    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]:
        least = row.top_k.astype(jnp.float32)
        return keep_heaviest(logits, jnp.ones_like(logits), least, row.top_k > 0)


@struct.dataclass
class TopP(Stateless):
    """Keep the smallest set of most likely tokens whose mass reaches p (Holtzman et al., 2020)."""

    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]:
        return keep_heaviest(logits, softmax(logits), row.top_p, row.top_p < 1)


@struct.dataclass
class MinP(Stateless):
    """Keep tokens at least ``min_p`` times as likely as the most likely (Nguyen et al., 2024)."""

    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]:
        floor = logits.max() + jnp.log(row.min_p).astype(logits.dtype)
        return jnp.where(logits < floor, -jnp.inf, logits)


FILTERS: tuple[Processor, ...] = (Temperature(), TopK(), TopP(), MinP())
"""The order in which transformers applies them."""


def start_processors(
    processors: tuple[Processor, ...],
    tokens: Int[Array, "B L"],
    length: Int[Array, " B"],
    sampling: Sampling,
) -> tuple:
    """Let every processor read the prompt of every row."""
    return tuple(jax.vmap(p.init)(tokens, length, sampling) for p in processors)


def _follow(processor: Processor, h: Any, path: Int[Array, " K"], depth: Int[Array, ""]) -> Any:
    """Advance one row's processor state over the first ``depth`` tokens of a path."""
    if not jax.tree.leaves(h) or path.shape[0] == 0:
        return h
    if isinstance(processor, FollowsPaths):
        return processor.follow(h, path, depth)

    def step(i, h):
        moved = processor.advance(h, path[i])
        return jax.tree.map(lambda new, old: jnp.where(i < depth, new, old), moved, h)

    return jax.lax.fori_loop(0, path.shape[0], step, h)


def advance_processors(
    processors: tuple[Processor, ...],
    states: tuple,
    tokens: Int[Array, "B T"],
    count: Int[Array, " B"],
) -> tuple:
    """Let every processor see the first ``count`` emitted tokens of each row."""
    follow = jax.vmap(_follow, in_axes=(None, 0, 0, 0))
    return tuple(follow(p, h, tokens, count) for p, h in zip(processors, states, strict=True))


def process(
    processors: tuple[Processor, ...],
    states: tuple,
    sampling: Sampling,
    logits: Float[Array, "B F V"],
    path: Int[Array, "B F K"],
    depth: Int[Array, "B F"],
) -> Float[Array, "B F V"]:
    """Apply the chain to the logits of F nodes, each after the tokens on its own path."""

    def at_node(logits, path, depth, states, row):
        logits = logits.astype(wide(logits.dtype))
        for processor, h in zip(processors, states, strict=True):
            logits = processor.apply(logits, _follow(processor, h, path, depth), row)
        return logits

    in_row = jax.vmap(at_node, in_axes=(0, 0, 0, None, None))
    return jax.vmap(in_row)(logits, path, depth, states, sampling)
