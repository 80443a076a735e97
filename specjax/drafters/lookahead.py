"""Lookahead: the target itself finds n-grams in parallel, in the pass that verifies others."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.drafters.chain import at_least_one
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Pool:
    """The last P n-grams of each row, each once and the newest last; -1 where there is none."""

    ngrams: Int[Array, "B P N"]

    @classmethod
    def empty(cls, batch: int, size: int, ngram: int) -> Pool:
        """Allocate a pool without n-grams."""
        return cls(jnp.full((batch, size, ngram), -1, jnp.int32))

    def add(self, new: Int[Array, "B T N"], keep: Bool[Array, "B T"]) -> Pool:
        """Put n-grams in; one that is there already becomes the newest, the oldest drop out."""
        size = self.ngrams.shape[1]
        ngrams = jnp.concatenate([self.ngrams, new], axis=1)
        keep = jnp.concatenate([self.ngrams[:, :, 0] >= 0, keep], axis=1)
        place = jnp.arange(ngrams.shape[1], dtype=jnp.int32)
        again = (ngrams[:, :, None] == new[:, None]).all(-1) & keep[:, None, size:]
        keep &= ~(again & (place[:, None] < place[size:])).any(-1)
        # Close the gaps. What is dropped gets an index of its own, as no slot is written twice.
        slot = jnp.cumsum(keep, axis=1, dtype=jnp.int32) + size - 1
        slot = slot - keep.sum(1, keepdims=True, dtype=jnp.int32)
        slot = jnp.where(keep & (slot >= 0), slot, size + place)
        write = jax.vmap(lambda row, at, x: row.at[at].set(x, mode="drop", unique_indices=True))
        return Pool(write(jnp.full_like(self.ngrams, -1), slot, ngrams))

    def latest(
        self, first: Int[Array, " B"], num: int
    ) -> tuple[Int[Array, "B G N"], Bool[Array, "B G"]]:
        """The ``num`` newest n-grams that begin with ``first``, and whether there are so many."""
        place = jnp.arange(1, self.ngrams.shape[1] + 1, dtype=jnp.int32)
        newness = jnp.where(self.ngrams[:, :, 0] == first[:, None], place, 0)
        found, at = jax.lax.top_k(newness, num)
        return jnp.take_along_axis(self.ngrams, at[..., None], axis=1), found > 0


@struct.dataclass
class Guesses:
    """The window: N - 1 rows of W guesses, -1 before the first round; and what it has yielded.

    Row i of column j guesses the token 1 + i + j positions after the newest one. ``tail`` are the
    last N - 1 tokens that were committed, -1 where there were fewer.
    """

    window: Int[Array, "B H W"]
    pool: Pool
    tail: Int[Array, "B H"]


@struct.dataclass
class Lookahead:
    """Draft n-grams that the target made up in earlier rounds, and let it make up more (Jacobi).

    Each round feeds ``num_candidates`` (G) n-grams of ``ngram`` (N) tokens that begin with the
    newest token, and a window of ``window`` (W) columns by N - 1 rows of guesses, never accepted.
    The target's argmax below each column completes an n-gram for the pool, and the rows move up.
    Needs no model and no training, but every pass is over 1 + (G + W)(N - 1) positions.
    ``from_text`` puts the n-grams of the prompt and of the output into the pool as well.

    Point masses: nothing is lost under coupled verification, the default. The kind of a draft is
    the number of its n-grams. Fu et al. 2024 (arXiv 2402.02057); there the first guesses are
    random, here they are the end of the row's own prompt, and n-grams that begin alike share nodes.

    Example:
        >>> drafter = Lookahead(ngram=3, window=4, num_candidates=2)
        >>> drafter.depth, drafter.num_nodes, drafter.tree_depth
        (2, 12, 5)

    Raises:
        ValueError: a number below 1, n-grams without a token to draft, or a pool that is too small.
    """

    ngram: int = struct.field(pytree_node=False, default=4)
    window: int = struct.field(pytree_node=False, default=5)
    num_candidates: int = struct.field(pytree_node=False, default=3)
    pool: int = struct.field(pytree_node=False, default=256)
    from_text: bool = struct.field(pytree_node=False, default=False)

    wants = ()
    samples = False
    rows_independent = True

    def __post_init__(self) -> None:
        for name in ("ngram", "window", "num_candidates", "pool"):
            at_least_one(name, getattr(self, name))
        if self.ngram < 2:
            raise ValueError("ngram: must be at least 2, since its first token is not drafted")
        if self.pool < self.num_candidates:
            raise ValueError(
                f"pool: must hold the {self.num_candidates} candidates, got {self.pool}"
            )

    @property
    def depth(self) -> int:
        return self.ngram - 1

    @property
    def num_nodes(self) -> int:
        return (self.num_candidates + self.window) * self.depth

    @property
    def tree_depth(self) -> int:
        return self.window + self.depth - 1

    @property
    def num_kinds(self) -> int:
        return self.num_candidates + 1

    def validate(self, target: Any) -> None:
        """Go with any target."""

    def init(self, target: Any, batch: int, capacity: int) -> Guesses:
        """Allocate a window without guesses and an empty pool."""
        return Guesses(
            window=jnp.full((batch, self.depth, self.window), -1, jnp.int32),
            pool=Pool.empty(batch, self.pool, self.ngram),
            tail=jnp.full((batch, self.depth), -1, jnp.int32),
        )

    def observe(
        self,
        target: Any,
        state: Guesses,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Guesses:
        """Collect the n-grams that the committed tokens complete, if these are wanted."""
        if not self.from_text:
            return state
        text = jnp.concatenate([state.tail, tokens], axis=1)
        ends = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        ngrams = text[:, ends[:, None] + jnp.arange(self.ngram, dtype=jnp.int32)]
        complete = (ends < count[:, None]) & (ngrams[:, :, 0] >= 0)
        last = count[:, None] + jnp.arange(self.depth, dtype=jnp.int32)
        return dataclasses.replace(
            state,
            pool=state.pool.add(ngrams, complete),
            tail=jnp.take_along_axis(text, last, axis=1),
        )

    def propose(
        self, target: Any, cache: Any, state: Guesses, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Guesses, Any]:
        """Put the candidates first and the window after them, row by row."""
        newest = context.newest()
        ngrams, found = state.pool.latest(newest[:, 0], self.num_candidates)
        parent, own = shared_prefixes(ngrams)
        level = jnp.arange(self.depth, dtype=jnp.int32)
        within = (level < draw.cap[:, None]) & draw.active[:, None]
        valid = own & found[..., None] & within[:, None]
        window = jnp.where(state.window < 0, self._first_guesses(context), state.window)
        batch, never = len(newest), jnp.zeros(window.shape, bool)
        flat = lambda *parts: jnp.concatenate([x.reshape(batch, -1) for x in parts], axis=1)  # noqa: E731
        draft = Draft(
            tokens=flat(jnp.maximum(ngrams[:, :, 1:], 0), window),
            parent=flat(parent, jnp.broadcast_to(self._window_parents(), window.shape)),
            valid=flat(valid, never),
            kind=found.sum(1, dtype=jnp.int32),
        )
        return draft, dataclasses.replace(state, window=window), cache

    def feedback(self, state: Guesses, draft: Draft, top: Int[Array, "B M"]) -> Guesses:
        """Let the target's argmax after the last row complete an n-gram in each column."""
        grown = jnp.concatenate([state.window, top[:, None, -self.window :]], axis=1)
        ngrams = grown.transpose(0, 2, 1)
        pool = state.pool.add(ngrams, jnp.ones(ngrams.shape[:2], bool))
        return dataclasses.replace(state, window=grown[:, 1:], pool=pool)

    def _first_guesses(self, context: Context) -> Int[Array, "B H W"]:
        """The last tokens of the text along the way; a shorter text goes round."""
        rows, columns = (jnp.arange(n, dtype=jnp.int32) for n in (self.depth, self.window))
        ahead, length = rows[:, None] + columns, context.length[:, None]
        place = (length - self.tree_depth + ahead.reshape(-1)) % length
        tokens = jnp.take_along_axis(context.tokens, place, axis=1)
        return tokens.reshape(-1, *ahead.shape)

    def _window_parents(self) -> Int[Array, "H W"]:
        """Row 0 is a chain from the root; every other node hangs from the one above it."""
        first = self.num_candidates * self.depth + 1
        node = first + jnp.arange(self.depth * self.window, dtype=jnp.int32)
        node = node.reshape(self.depth, self.window)
        chain = jnp.pad(node[:1, :-1], ((0, 0), (1, 0)))
        return jnp.concatenate([chain, node[:-1]])


def shared_prefixes(
    ngrams: Int[Array, "B G N"],
) -> tuple[Int[Array, "B G H"], Bool[Array, "B G H"]]:
    """Parents of candidates laid out as chains that share the nodes of equal beginnings.

    Also says which nodes are a candidate's own; the others are copies, with nothing below them.
    """
    num, depth = ngrams.shape[1], ngrams.shape[2] - 1
    same = ngrams[:, :, None, 1:] == ngrams[:, None, :, 1:]
    same = jnp.cumprod(same, axis=-1, dtype=jnp.int32)
    lead = same.argmax(2).astype(jnp.int32)  # the first candidate that begins alike
    above = lead[..., :-1] * depth + jnp.arange(1, depth, dtype=jnp.int32)
    own = lead == jnp.arange(num, dtype=jnp.int32)[:, None]
    return jnp.pad(above, ((0, 0), (0, 0), (1, 0))), own
