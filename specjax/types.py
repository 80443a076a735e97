"""The values that pass between target, drafter, verifier and loop.

Shapes: B rows, L token capacity, K draft length (depth), E = K + 1 tokens a round can emit,
N draft nodes, M = N + 1 nodes with the root, V vocabulary, S cache slots, D features,
T tokens of one pass, R slots under a mask, F nodes of a frontier, C children, I stop ids.
Everything here is a pytree of arrays with static structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

RUNNING, STOPPED, OUT_OF_BUDGET, EMPTY, DEAD_END = range(5)
"""``State.finish``: decoding; a stop token; the budget; an empty slot; no token is allowed."""


@struct.dataclass
class Context:
    """The tokens of every row; ``length`` is the accepted-length counter, the only truth."""

    tokens: Int[Array, "B L"]
    length: Int[Array, " B"]

    def window(self, start: Int[Array, " B"], num: int) -> Int[Array, "B T"]:
        """``num`` tokens of each row from ``start`` on; past the capacity the last one repeats."""
        place = start[:, None] + jnp.arange(num, dtype=jnp.int32)
        place = jnp.clip(place, 0, self.tokens.shape[1] - 1)
        return jnp.take_along_axis(self.tokens, place, axis=1)

    def newest(self) -> Int[Array, "B 1"]:
        """The last token of each row, which no cache holds yet."""
        return self.window(self.length - 1, 1)


@struct.dataclass
class Draft:
    """A proposed tree. Node 0 is the newest token, node i (1..N) is ``tokens[:, i - 1]``.

    Parents come before children, siblings in the order in which they are to be tried.
    ``probs[:, i]`` is the law that node i + 1 was really drawn from (for siblings drawn
    without replacement, the reduced law); ``None`` says that every node is a point mass.
    A node that is not ``valid`` is fed to the target but never accepted.
    ``hidden`` hands states of the first layers on; ``remaining`` are the layers still to run.
    ``kind`` is one of the drafter's own classes of drafts, 0..num_kinds - 1, later ones promising
    more (a longer match, say), and depends on committed tokens alone; None is class 0.
    """

    tokens: Int[Array, "B N"]
    parent: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    probs: Float[Array, "B N V"] | None = None
    hidden: Float[Array, "B M D"] | None = None
    remaining: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    kind: Int[Array, " B"] | None = None

    def kinds(self) -> Int[Array, " B"]:
        """The kind of each row's draft."""
        return jnp.zeros(len(self.tokens), jnp.int32) if self.kind is None else self.kind


@struct.dataclass
class Node:
    """A frontier of F draft nodes as a value: how to get there, and the key to go on with."""

    path: Int[Array, "B F K"]
    depth: Int[Array, "B F"]
    alive: Bool[Array, "B F"]
    key: Key[Array, "B F"]

    def take(self, index: Int[Array, "B G"]) -> Node:
        """Select nodes along the frontier axis, row by row."""
        return jax.tree.map(lambda x: jax.vmap(lambda row, i: row[i])(x, index), self)


@struct.dataclass
class Drawn:
    """Children drawn at every node of a frontier.

    ``law[:, f, c]`` is what child c was really drawn from (``None`` where the verifier
    does not ask); ``score`` is its log-probability at temperature 1.
    """

    tokens: Int[Array, "B F C"]
    law: Float[Array, "B F C V"] | None
    score: Float[Array, "B F C"]
    children: Node


@struct.dataclass
class Verdict:
    """What a verifier decides: the accepted path, and the law of the token after it.

    ``path[:, j]`` is the node at depth j + 1 for j < num_accepted. A row of ``last`` that
    is all zero says that no token is allowed.
    """

    num_accepted: Int[Array, " B"]
    path: Int[Array, "B N"]
    last: Float[Array, "B V"]


@struct.dataclass
class Stats:
    """Counters of one call; every ratio is derived from them on the host.

    ``outcomes[b, d, a]`` counts rounds whose judged draft was d deep and of which a tokens
    were kept. A round cut short by a stop or the budget is judged only as far as it was kept.
    ``nodes`` counts valid draft nodes, ``clipped`` tokens that were verified and then cut,
    ``experts`` the distinct experts that each pass over the row has read, summed over layers; None
    where the target has none.
    """

    rounds: Int[Array, " B"]
    outcomes: Int[Array, "B E E"]
    nodes: Int[Array, " B"]
    clipped: Int[Array, " B"]
    experts: Int[Array, " B"] | None = None

    @classmethod
    def zeros(cls, batch: int, depth: int, *, sparse: bool) -> Stats:
        """Nothing counted yet; no two counters share an array."""
        side = depth + 1
        shapes = ((), (side, side), (), (), *([()] if sparse else []))
        return cls(*(jnp.zeros((batch, *shape), jnp.int32) for shape in shapes))


@struct.dataclass
class Sampling:
    """How each row samples, and which tokens end it; every value is a leaf, one per row.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch their filter off; ``stop_ids``
    is padded with -1. What may be None is not in the program at all; where it is, a row is left
    alone by bias 0, repetition_penalty 1, presence_penalty and frequency_penalty 0,
    no_repeat_ngram_size 0, min_new_tokens 0, grammar 0 (the state that allows everything) and
    stop_strings 0 (the set of strings that end the row, as bits).
    """

    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    min_p: Float[Array, " B"]
    stop_ids: Int[Array, "B I"]
    bias: Float[Array, "B V"] | None = None
    repetition_penalty: Float[Array, " B"] | None = None
    presence_penalty: Float[Array, " B"] | None = None
    frequency_penalty: Float[Array, " B"] | None = None
    no_repeat_ngram_size: Int[Array, " B"] | None = None
    min_new_tokens: Int[Array, " B"] | None = None
    grammar: Int[Array, " B"] | None = None
    stop_strings: Int[Array, " B"] | None = None

    @classmethod
    def of(
        cls,
        batch: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        stop_ids: Sequence[int] = (),
    ) -> Sampling:
        """Give every row the same values.

        >>> Sampling.of(2, temperature=0.5).temperature.tolist()
        [0.5, 0.5]
        """
        ids = jnp.asarray(tuple(stop_ids) or (-1,), jnp.int32)
        return cls(
            temperature=jnp.full(batch, temperature, jnp.float32),
            top_k=jnp.full(batch, top_k, jnp.int32),
            top_p=jnp.full(batch, top_p, jnp.float32),
            min_p=jnp.full(batch, min_p, jnp.float32),
            stop_ids=jnp.tile(ids, (batch, 1)),
        )


@struct.dataclass
class State:
    """Everything that a round reads and writes. Every leaf is [B, ...] with rows first.

    ``limit`` is the total length at which a row ends, ``cap`` its longest draft;
    ``drafted`` marks the tokens that came from an accepted draft. ``begin`` is the length of the
    prompt. ``draft_processors`` are there where the drafter has a chain of its own, ``matching``
    where strings may end a row, ``record`` where log-probabilities are wanted, ``policy`` where
    draft lengths adapt.
    """

    context: Context
    cache: Any
    drafter: Any
    processors: Any
    sampling: Sampling
    key: Key[Array, " B"]
    limit: Int[Array, " B"]
    finish: Int[Array, " B"]
    cap: Int[Array, " B"]
    drafted: Bool[Array, "B L"]
    stats: Stats
    begin: Int[Array, " B"]
    draft_processors: Any = ()
    matching: Int[Array, " B"] | None = None
    record: Any = None
    policy: Any = ()
