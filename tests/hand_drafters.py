"""Drafters written for tests: one that says what it is told, and a branching one that watches."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax import tree
from specjax.drafters.chain import Chain
from specjax.testing import TableLM
from specjax.types import Context, Draft


def counting_lm(vocab_size, sharpness=30.0):
    """A target that counts: after a comes a + 1, and after the last token 0 again."""
    following = jnp.roll(jnp.eye(vocab_size, dtype=jnp.float32), 1, axis=1)
    return TableLM(jnp.broadcast_to(sharpness * following, (vocab_size,) * 3))


@struct.dataclass
class Scripted(Chain):
    """Drafts what its script holds at the positions ahead; -1 is no draft."""

    script: Int[Array, "B L"]
    draft_length: int = struct.field(pytree_node=False, default=3)

    def propose(self, target, cache, state, context, draw, *, width):
        tokens = Context(self.script, context.length).window(context.length, width)
        ahead = jnp.arange(width, dtype=jnp.int32)
        valid = draw.active[:, None] & (ahead < draw.cap[:, None]) & (tokens >= 0)
        parent = tree.chain_parents(tokens.shape[0], width)
        return Draft(jnp.maximum(tokens, 0), parent, valid), state, cache


@struct.dataclass
class Seen:
    """What a ``Branching`` drafter was shown: by position, and of the last round by node."""

    times: Int[Array, "B S"]
    tokens: Int[Array, "B S"]
    features: Float[Array, "B S 3*D"]
    fed: Int[Array, "B 4"]
    top: Int[Array, "B 5"]


@struct.dataclass
class Branching:
    """Two children of the newest token, one of each of them, from a table; wants three layers."""

    table: Float[Array, "V V V"]

    depth = 2
    num_nodes = 4
    tree_depth = 2
    wants = (0, 1, 2)
    samples = True
    rows_independent = True

    def validate(self, target):
        pass

    def init(self, target, batch, capacity):
        zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)  # noqa: E731
        size = jax.eval_shape(target.embed, zeros(1)).shape[-1]
        features = jnp.zeros((batch, capacity, 3 * size), jnp.float32)
        return Seen(zeros(capacity), zeros(capacity), features, zeros(4), zeros(5))

    def observe(self, target, state, tokens, start, count, features):
        offset = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        place = start[:, None] + offset
        place = jnp.where(offset < count[:, None], place, state.times.shape[1] + offset)
        put = jax.vmap(lambda old, at, new: old.at[at].set(new, mode="drop"))
        return state.replace(
            times=jax.vmap(lambda old, at: old.at[at].add(1, mode="drop"))(state.times, place),
            tokens=put(state.tokens, place, tokens),
            features=put(state.features, place, jnp.concatenate(features, axis=-1)),
        )

    def feedback(self, state, draft, top):
        return state.replace(fed=draft.tokens, top=top)

    def propose(self, target, cache, state, context, draw, *, width):
        newest = context.newest()
        before = context.window(context.length - 2, 1)
        before = jnp.where(context.length[:, None] > 1, before, 0)
        first = draw(self.table[before, newest], draw.root(), 2)
        level = jax.tree.map(lambda x: x[:, 0], first.children)
        second = draw(self.table[newest, first.tokens[:, 0]], level)
        both = (first, second)
        batch = newest.shape[0]
        tokens = jnp.concatenate([x.tokens.reshape(batch, -1) for x in both], axis=1)
        valid = jnp.concatenate([x.children.alive.reshape(batch, -1) for x in both], axis=1)
        probs = None
        if draw.records_law:
            size = self.table.shape[-1]
            probs = jnp.concatenate([x.law.reshape(batch, -1, size) for x in both], axis=1)
        parent = jnp.broadcast_to(jnp.asarray([0, 0, 1, 2], jnp.int32), (batch, 4))
        return Draft(tokens, parent, valid, probs), state, cache
