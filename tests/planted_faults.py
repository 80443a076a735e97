"""Rules that are wrong, each in one place: every one of them must make a test fail."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from specjax.drafters import DraftModel
from specjax.types import Verdict
from specjax.verify import Block, Token
from specjax.verify.block import cover, drafted_law
from specjax.verify.token import node_law


def normalise(x):
    return x / jnp.maximum(x.sum(-1, keepdims=True), 1e-300)


@struct.dataclass
class ChainRule(Token):
    """Token verification of a chain, written so that each of its parts can be replaced."""

    def accepts(self, coin, p, q, x):
        return coin * at(q, x) < at(p, x)

    def corrected(self, p, q, x):
        return normalise(jnp.maximum(p - q, 0))

    def bonus(self, p, q):
        return p

    def accept(self, draft, p, coins):
        num = draft.tokens.shape[1]
        rows = jnp.arange(draft.tokens.shape[0])
        q = jnp.stack([node_law(draft, i + 1, p.shape[-1], p.dtype) for i in range(num)], 1)
        passes = self.accepts(coins, p[:, :-1], q, draft.tokens)
        count = self.count(passes)
        corrections = self.corrected(p[:, :-1], q, draft.tokens)
        laws = jnp.concatenate([corrections, self.bonus(p[:, -1:], q[:, -1:])], axis=1)
        path = jnp.broadcast_to(jnp.arange(1, num + 1, dtype=jnp.int32), passes.shape)
        return Verdict(count, path, laws[rows, count])

    def count(self, passes):
        return jnp.cumprod(passes, axis=1, dtype=jnp.int32).sum(1)


def at(law, x):
    return jnp.take_along_axis(law, x[..., None], axis=-1)[..., 0]


class ResamplesFromTarget(ChainRule):
    def corrected(self, p, q, x):
        return p


class AcceptsWhenTargetIsHigher(ChainRule):
    def accepts(self, coin, p, q, x):
        return at(p, x) >= at(q, x)


class AbsoluteResidual(ChainRule):
    def corrected(self, p, q, x):
        return normalise(jnp.abs(p - q))


class ResidualWithoutToken(ChainRule):
    def corrected(self, p, q, x):
        return normalise(jnp.where(jnp.arange(p.shape[-1], dtype=x.dtype) == x[..., None], 0, p))


class ArgmaxOfResidual(ChainRule):
    def corrected(self, p, q, x):
        best = super().corrected(p, q, x).argmax(-1)
        return jax.nn.one_hot(best, p.shape[-1], dtype=p.dtype)


class SoftmaxOfResidual(ChainRule):
    def corrected(self, p, q, x):
        return jax.nn.softmax(jnp.maximum(p - q, 0))


class BonusAtWrongTemperature(ChainRule):
    def bonus(self, p, q):
        return normalise(p**2)


class BonusFromDraft(ChainRule):
    def bonus(self, p, q):
        return q


class AcceptsTheArgmax(ChainRule):
    def accepts(self, coin, p, q, x):
        return x == p.argmax(-1).astype(x.dtype)


class JudgedByThePreviousRow(ChainRule):
    def accept(self, draft, p, coins):
        return super().accept(draft, jnp.roll(p, 1, axis=1), coins)


class KeepsTheTail(ChainRule):
    """Counts every token that passes, also past a rejection."""

    def count(self, passes):
        return passes.sum(1, dtype=jnp.int32)


class ForgivesAZeroCoin(ChainRule):
    def accepts(self, coin, p, q, x):
        return coin <= at(p, x) / at(q, x)


@struct.dataclass
class BlockRule(Block):
    """Block verification, written so that each of its parts can be replaced."""

    def cover(self, draft, p, q):
        return cover(draft, p, q)

    def heights(self, covered, mass):
        weight = mass + 1 - covered
        return jnp.where(weight > 0, mass / jnp.where(weight > 0, weight, 1), 1)

    def count(self, passes):
        index = jnp.arange(1, passes.shape[1] + 1, dtype=jnp.int32)
        return jnp.where(passes, index, 0).max(1)

    def missing(self, covered, p, q):
        return jnp.maximum(covered[..., None] * p - q, 0)

    def accept(self, draft, p, coins):
        drafted = draft.valid
        q = drafted_law(draft, drafted, p)
        covered = self.cover(draft, p, q)
        mass = jnp.maximum(covered[..., None] * p - q, 0).sum(-1)
        count = self.count(coins < self.heights(covered, mass)[:, 1:])
        rows = jnp.arange(count.shape[0])
        rest = self.missing(covered, p, q)[rows, count]
        last = jnp.where(rest.sum(-1, keepdims=True) > 0, normalise(rest), p[rows, count])
        path = jnp.broadcast_to(jnp.arange(1, coins.shape[1] + 1, dtype=jnp.int32), coins.shape)
        return Verdict(count, path, last)


class BlockWithoutClamp(BlockRule):
    def cover(self, draft, p, q):
        ratio = at(p[:, :-1], draft.tokens) / at(q[:, :-1], draft.tokens)
        return jnp.pad(jnp.cumprod(ratio, axis=1), ((0, 0), (1, 0)), constant_values=1)

    def heights(self, covered, mass):
        return super().heights(jnp.minimum(covered, 1), mass)


class BlockOfCovers(BlockRule):
    def heights(self, covered, mass):
        return covered


class BlockStopsAtFirstFailure(BlockRule):
    def count(self, passes):
        return jnp.cumprod(passes, axis=1, dtype=jnp.int32).sum(1)


class BlockWithTokenResidual(BlockRule):
    def missing(self, covered, p, q):
        return jnp.maximum(p - q, 0)


@struct.dataclass
class DropsUnlikelyTokens(DraftModel):
    """Leaves out its own token when q thinks it unlikely: a choice that looks at the token."""

    def propose(self, target: Any, cache, state, context, draw, *, width):
        draft, state, cache = super().propose(target, cache, state, context, draw, width=width)
        likely = at(draft.probs, draft.tokens) > 0.3
        return draft.replace(valid=draft.valid & likely), state, cache


@struct.dataclass
class RecordsUnfilteredLaw(DraftModel):
    """Samples after top-k and records the law before it."""

    def propose(self, target: Any, cache, state, context, draw, *, width):
        wrong = _Recording(draw)
        return super().propose(target, cache, state, context, wrong, width=width)


class _Recording:
    def __init__(self, draw):
        self.draw = draw

    def __getattr__(self, name):
        return getattr(self.draw, name)

    def __call__(self, logits, node, num=1):
        bare = self.draw.replace(processors=(), states=())
        return self.draw(logits, node, num).replace(law=bare(logits, node, num).law)


@struct.dataclass
class RewindsToWhereDraftingStopped(DraftModel):
    """Believes that everything it fed was committed."""

    def observe(self, target: Any, state, tokens, start, count, features):
        num_fed = (state.fed >= 0).sum(1, dtype=jnp.int32)
        drafted = (state.synced == start + 1) & (count > 0)
        kept = jnp.minimum(num_fed, 1 + 0 * count)
        return state.replace(synced=state.synced + jnp.where(drafted, kept, 0))
