"""A target that says again what was once said: it judges drafts as the model that said it did.

At temperature 0, and under coupled verification at any, a draft changes no token. So what was
decoded once, plainly, tells for every drafter that reads text alone how much of its drafts would
have been kept, through the very loop and without the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import loop, rng, tree
from specjax.drafters import Chain
from specjax.metrics import Metrics
from specjax.program import Program
from specjax.protocols import Draw, Policy
from specjax.request import aligned
from specjax.types import Context, Draft, Sampling, Stats
from specjax.verify import Coupled


@struct.dataclass
class NoCache:
    """What a recording keeps of a row: nothing but its place in the batch."""

    rows: Int[Array, " B"]

    def insert(self, slot: Int[Array, ""] | int, one: NoCache) -> NoCache:
        """Keep nothing."""
        return self

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> NoCache:
        """Move nothing."""
        return self


@struct.dataclass
class Recording:
    """A ``Target`` certain of the next token of each row's ``text``, whatever it is fed.

    A hidden state is the token to come. Nodes off the text get an answer as well, which no one
    reaches.
    """

    text: Int[Array, "B L"]
    vocab_size: int = struct.field(pytree_node=False)
    num_layers: int = struct.field(pytree_node=False, default=1)
    max_length: int | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], vocab_size: int) -> Recording:
        """Record a text for each row, prompts included."""
        return cls(jnp.asarray(aligned(texts, max(map(len, texts)) + 1)), vocab_size)

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> NoCache:
        """Keep nothing."""
        return NoCache(jnp.arange(batch, dtype=jnp.int32))

    def extend(
        self,
        inputs: Int[Array, "B T"],
        start: Int[Array, " B"],
        cache: NoCache,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T 1"], NoCache, tuple]:
        """Look up what follows each position."""
        if positions is None:
            positions = start[:, None] + jnp.arange(inputs.shape[1], dtype=jnp.int32)
        following = jnp.clip(positions + 1, 0, self.text.shape[1] - 1)
        tokens = jnp.take_along_axis(self.text, following, axis=1)
        return tokens[..., None].astype(jnp.float32), cache, ()

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T 1"]:
        """The token itself."""
        return tokens[..., None].astype(jnp.float32)

    def unembed(self, hidden: Float[Array, "*B 1"]) -> Float[Array, "*B V"]:
        """Certainty."""
        ids = jnp.arange(self.vocab_size, dtype=jnp.int32)
        return jnp.where(ids == hidden.astype(jnp.int32), 50.0, 0.0)


@struct.dataclass
class Foretold(Chain):
    """Drafts what its script says of each position: what a model would draft on the true text.

    After a first mistake its drafts are not the model's own, but none of them is kept either.
    """

    script: Int[Array, "B L"]
    draft_length: int = struct.field(pytree_node=False, default=4)

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Read the script on from where each row is."""
        tokens = Context(self.script, context.length).window(context.length, width)
        ahead = jnp.arange(width, dtype=jnp.int32)
        valid = draw.active[:, None] & (ahead < draw.cap[:, None])
        return Draft(tokens, tree.chain_parents(*tokens.shape), valid), state, cache


def replay(
    texts: Sequence[Sequence[int]],
    begins: Sequence[int],
    drafter: Any,
    *,
    vocab_size: int,
    policy: Policy | None = None,
) -> list[Metrics]:
    """What ``drafter`` would have brought for each text, of which ``begins`` tokens are prompt."""
    target = Recording.of(texts, vocab_size)
    program = Program(target, drafter, Coupled(), policy=policy)
    batch = len(texts)
    length = jnp.asarray(begins, jnp.int32)
    limit = jnp.asarray([len(text) for text in texts], jnp.int32)
    tokens = jnp.where(jnp.arange(target.text.shape[1]) < length[:, None], target.text, 0)
    stats = jax.device_get(_decode(program, tokens, length, Sampling.of(batch), limit))
    return [Metrics.from_stats(stats, row) for row in range(batch)]


@jax.jit
def _decode(program: Program, tokens, length, values: Sampling, limit) -> Stats:
    key = rng.row_keys(jnp.arange(len(length), dtype=jnp.uint32))
    state = loop.start(
        program, tokens, length, sampling_values=values, key=key, limit=limit, chunk=64
    )
    return loop.generate(program, state, chunk=64).stats
