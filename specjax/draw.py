"""Drawing draft tokens: the one place where a drafter's logits become tokens and a recorded law."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from specjax import rng, sampling
from specjax.protocols import Processor, StoppingRule
from specjax.types import Drawn, Node, Sampling


def fit_vocabulary(
    logits: Float[Array, "*B W"], size: int, num_tokens: int | None = None
) -> Float[Array, "*B V"]:
    """Pad a smaller vocabulary with -inf, cut a longer one: ids beyond the target's get no mass.

    Nor do those from ``num_tokens`` on, with which a model pads its own vocabulary.
    """
    missing = size - logits.shape[-1]
    if missing > 0:
        pad = [(0, 0)] * (logits.ndim - 1) + [(0, missing)]
        logits = jnp.pad(logits, pad, constant_values=-jnp.inf)
    logits = logits[..., :size]
    if num_tokens is None or num_tokens >= size:
        return logits
    return jnp.where(jnp.arange(size, dtype=jnp.int32) < num_tokens, logits, -jnp.inf)


@struct.dataclass
class RowDraw:
    """Draws children for every row under that row's processors (see ``protocols.Draw``).

    ``noise`` holds the Gumbel vectors of the next K + 1 positions for coupled runs; otherwise it
    is None and every draw takes fresh noise from a key derived along the path. ``records_law`` says
    whether the verifier will ask what each node was drawn from. ``caps`` bounds drafts of each
    kind, where a policy tells kinds apart.
    """

    active: Bool[Array, " B"]
    cap: Int[Array, " B"]
    key: Key[Array, " B"]
    sampling: Sampling
    states: tuple
    noise: Float[Array, "B E V"] | None
    processors: tuple[Processor, ...]
    vocab_size: int = struct.field(pytree_node=False)
    tree_depth: int = struct.field(pytree_node=False)
    num_tokens: int | None = struct.field(pytree_node=False, default=None)
    records_law: bool = struct.field(pytree_node=False, default=True)
    stopping: StoppingRule | None = None
    caps: Int[Array, "B C"] | None = None

    def narrow(self, allowed: Bool[Array, " B"]) -> RowDraw:
        """Let only some rows draft: all others are none of this drafter's business."""
        return dataclasses.replace(
            self, active=self.active & allowed, cap=jnp.where(allowed, self.cap, 0)
        )

    def for_kinds(self, first: int, num: int) -> RowDraw:
        """Draw for a drafter whose drafts are of ``num`` kinds from ``first`` on."""
        if self.caps is None:
            return self
        caps = self.caps[:, first : first + num]
        return dataclasses.replace(self, cap=jnp.minimum(self.cap, caps.max(1)), caps=caps)

    def find(self, kind: type) -> tuple[Any, Any] | None:
        """The processor of this kind and its state in every row, None where there is none."""
        pairs = zip(self.processors, self.states, strict=True)
        return next(((p, h) for p, h in pairs if isinstance(p, kind)), None)

    def root(self) -> Node:
        """Start at the newest token."""
        batch = self.active.shape[0]
        return Node(
            path=jnp.zeros((batch, 1, self.tree_depth), jnp.int32),
            depth=jnp.zeros((batch, 1), jnp.int32),
            alive=(self.active & (self.cap > 0))[:, None],
            key=self.key[:, None],
        )

    def __call__(self, logits: Float[Array, "B F W"], node: Node, num: int = 1) -> Drawn:
        """Draw ``num`` children of each node, without replacement, from the processed logits.

        Where the stopping rule ends the draft, none of them is alive.
        """
        logits = fit_vocabulary(logits, self.vocab_size, self.num_tokens)
        processed = sampling.process(
            self.processors, self.states, self.sampling, logits, node.path, node.depth
        )
        greedy = jnp.broadcast_to(self.sampling.temperature[:, None] == 0, node.depth.shape)
        ranked = sampling.perturb(processed, self._noise_at(node), greedy)
        value, tokens = _largest(ranked, num)
        law = sibling_laws(processed, tokens, greedy) if self.records_law else None
        score = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens, axis=-1)
        alive = jnp.isfinite(value)
        if self.stopping is not None:
            stops = self.stopping.stops(sampling.softmax(processed), node.depth)
            alive = alive & ~stops[..., None]
        return Drawn(tokens, law, score, self._children(node, tokens, alive))

    def _noise_at(self, node: Node) -> Float[Array, "B F V"]:
        if self.noise is not None:
            depth = jnp.minimum(node.depth, self.noise.shape[1] - 1)
            return jax.vmap(lambda noise, d: noise[d])(self.noise, depth)
        keys = rng.fold(node.key, 0)
        return jax.lax.cond(
            (self.sampling.temperature > 0).any(),
            lambda: rng.gumbel(keys, self.vocab_size),
            lambda: jnp.zeros((*keys.shape, self.vocab_size), jnp.float32),
        )

    def _children(
        self, node: Node, tokens: Int[Array, "B F C"], supported: Bool[Array, "B F C"]
    ) -> Node:
        num = tokens.shape[-1]
        here = jnp.arange(self.tree_depth, dtype=jnp.int32) == node.depth[..., None, None]
        path = jnp.where(here, tokens[..., None], node.path[:, :, None])
        within = (node.depth < self.cap[:, None]) & node.alive
        ordinal = jnp.broadcast_to(jnp.arange(1, num + 1, dtype=jnp.uint32), tokens.shape)
        return Node(
            path=path,
            depth=jnp.broadcast_to(node.depth[..., None] + 1, tokens.shape),
            alive=within[..., None] & supported,
            key=rng.fold(node.key, ordinal),
        )


def _largest(
    ranked: Float[Array, "B F V"], num: int
) -> tuple[Float[Array, "B F C"], Int[Array, "B F C"]]:
    """The ``num`` largest of each row, of equals the lower index first."""
    if num > 1:
        value, index = jax.lax.top_k(ranked, num)
        return value, index.astype(jnp.int32)
    # Over a vocabulary in pieces top_k gathers all of it, and argmax only each piece's largest.
    index = ranked.argmax(-1, keepdims=True).astype(jnp.int32)
    return jnp.take_along_axis(ranked, index, axis=-1), index


def sibling_laws(
    logits: Float[Array, "B F V"], tokens: Int[Array, "B F C"], greedy: Bool[Array, "B F"]
) -> Float[Array, "B F C V"]:
    """Law of each sibling given that the earlier ones are taken."""
    laws = []
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    for c in range(tokens.shape[-1]):
        laws.append(sampling.law(logits, greedy))
        logits = jnp.where(ids == tokens[..., c, None], -jnp.inf, logits)
    return jnp.stack(laws, axis=2)
