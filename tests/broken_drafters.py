"""A drafter and a rule with a fault to choose: it is a leaf, so one program serves all of them."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int
from planted_faults import ChainRule, at

from specjax.drafters import DraftModel

DRAFTER_FAULTS = (
    "none",
    "argmax recorded as a draw",
    "law recorded at another temperature",
    "own unlikely tokens dropped",
    "rewound to where drafting stopped",
    "last kept token missing",
)
_, ARGMAX, OTHER_LAW, DROPS, REWINDS, MISSES = range(6)
RULE_FAULTS = ("none", "resampled from the target", "tail kept past a rejection")
_, RESAMPLES, KEEPS_TAIL = range(3)


@struct.dataclass
class Broken(DraftModel):
    """A draft model that does one thing wrong, or none."""

    fault: Int[Array, ""] | None = None

    def propose(self, target, cache, state, context, draw, *, width):
        draw = BrokenDraw(draw, self.fault)
        draft, state, cache = super().propose(target, cache, state, context, draw, width=width)
        if draft.probs is not None:
            likely = (at(draft.probs, draft.tokens) > 0.3) | (self.fault != DROPS)
            draft = draft.replace(valid=draft.valid & likely)
        return draft, state, cache

    def observe(self, target, state, tokens, start, count, features):
        after = super().observe(target, state, tokens, start, count, features)
        drafted = (state.synced == start + 1) & (count > 0)
        num_fed = (state.fed >= 0).sum(1, dtype=jnp.int32)
        all_fed = state.synced + jnp.where(drafted, jnp.minimum(num_fed, 1), 0)
        # After full acceptance the last draft token was never fed; this one believes it was.
        one_more = after.synced + (drafted & (count == self.depth + 1)).astype(jnp.int32)
        synced = jnp.where(self.fault == REWINDS, all_fed, after.synced)
        return after.replace(synced=jnp.where(self.fault == MISSES, one_more, synced))


class BrokenDraw:
    """The loop's hand in drafting, bent."""

    def __init__(self, draw, fault):
        self.draw, self.fault = draw, fault

    def __getattr__(self, name):
        return getattr(self.draw, name)

    def narrow(self, allowed):
        return BrokenDraw(self.draw.narrow(allowed), self.fault)

    def __call__(self, logits, node, num=1):
        drawn = self.draw(logits, node, num)
        best = logits.argmax(-1)[..., None].astype(jnp.int32)
        drawn = drawn.replace(tokens=jnp.where(self.fault == ARGMAX, best, drawn.tokens))
        if drawn.law is None:
            return drawn
        colder = self.draw.sampling.replace(temperature=self.draw.sampling.temperature / 2)
        other = self.draw.replace(sampling=colder)(logits, node, num).law
        return drawn.replace(law=jnp.where(self.fault == OTHER_LAW, other, drawn.law))


@struct.dataclass
class BrokenRule(ChainRule):
    """Token verification that does one thing wrong, or none."""

    fault: Int[Array, ""] | None = None

    def corrected(self, p, q, x):
        return jnp.where(self.fault == RESAMPLES, p, super().corrected(p, q, x))

    def count(self, passes):
        every = passes.sum(1, dtype=jnp.int32)
        return jnp.where(self.fault == KEEPS_TAIL, every, super().count(passes))


def broken(model, fault, draft_length=2):
    """A draft model with a fault."""
    return Broken(model, draft_length, fault=jnp.asarray(fault, jnp.int32))


def broken_rule(fault):
    """A rule with a fault."""
    return BrokenRule(fault=jnp.asarray(fault, jnp.int32))


sound_rule = broken_rule(0)
"""For the command line."""


def drifting(target):
    """For the command line: a target drafting for itself, whose draft cache drifts."""
    return broken(target, MISSES)
