"""What drafters share that run a model with a cache of its own, beside the target's."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax import tree
from specjax.drafters.chain import Chain, at_least_one
from specjax.protocols import Draw
from specjax.types import Context, Draft


@struct.dataclass
class Progress:
    """The model's cache, and how far it agrees with what was committed.

    Slots 0..synced-1 hold committed tokens. ``fed`` are the draft tokens fed beyond them in the
    last round, by node, -1 where none was.
    """

    cache: Any
    synced: Int[Array, " B"]
    fed: Int[Array, "B N"]


class OwnCache(Chain):
    """A drafter that runs a model; ``_model`` says which, ``_draft`` draws from it.

    Its cache may lag: by two after full acceptance, since the last proposal was never fed, and by
    more after rounds in which it did not draft. Rows longer than the model allows do not draft.
    """

    catch_up: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("catch_up", self.catch_up)

    def _model(self, target: Any) -> Any:
        raise NotImplementedError

    def _draft(
        self, target: Any, state: Progress, context: Context, draw: Draw, width: int
    ) -> tuple[Draft, Any]:
        """Return a draft and the model's cache, which lags by two at most in rows that draft."""
        raise NotImplementedError

    @property
    def samples(self) -> bool:
        return True

    def init(self, target: Any, batch: int, capacity: int) -> Progress:
        """Allocate the model's cache."""
        # After a rejection the next pass starts up to num_nodes + 1 slots further back.
        scratch = max(self.catch_up, self.num_nodes + 2)
        return Progress(
            cache=self._model(target).init_cache(batch, capacity, scratch=scratch),
            synced=jnp.zeros(batch, jnp.int32),
            fed=jnp.full((batch, self.num_nodes), -1, jnp.int32),
        )

    def propose(
        self, target: Any, cache: Any, state: Progress, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Progress, Any]:
        """Catch up with the context, then draft ``width`` tokens deep."""
        model = self._model(target)
        if model.max_length is not None:
            draw = draw.narrow(context.length + width <= model.max_length)
        drafting = draw.root().alive[:, 0]
        state = self._catch_up(model, state, context, drafting)
        draft, own = self._draft(target, state, context, draw, width)
        # What is drawn last is never fed.
        fed = draft.valid & (tree.depths(draft.parent)[:, 1:] < width)
        fed = jnp.where(fed, draft.tokens, -1)
        state = Progress(
            cache=own,
            synced=jnp.where(drafting, context.length, state.synced),
            fed=jnp.full_like(state.fed, -1).at[:, : fed.shape[1]].set(fed),
        )
        return draft, state, cache

    def _catch_up(self, model: Any, state: Progress, context: Context, drafting) -> Progress:
        """Feed committed tokens in chunks while any drafting row lags by more than two."""

        def lag(synced):
            return jnp.where(drafting, context.length - synced, 0)

        def step(carry):
            cache, synced = carry
            count = jnp.clip(lag(synced) - 1, 0, self.catch_up)
            tokens = context.window(synced, self.catch_up)
            _, cache, _ = model.extend(tokens, synced, cache, count=count)
            return cache, synced + count

        behind = lambda carry: (lag(carry[1]) > 2).any()  # noqa: E731
        cache, synced = jax.lax.while_loop(behind, step, (state.cache, state.synced))
        return dataclasses.replace(state, cache=cache, synced=synced)


def newest_state(
    model: Any, cache: Any, synced: Int[Array, " B"], context: Context, drafting: Bool[Array, " B"]
) -> tuple[Float[Array, "B 1 D"], Any]:
    """One pass over the last one or two committed tokens: the newest one's state, and the cache."""
    count = jnp.where(drafting, context.length - synced, 0)
    hidden, cache, _ = model.extend(context.window(synced, 2), synced, cache, count=count)
    at = jnp.maximum(count - 1, 0)
    return jnp.take_along_axis(hidden, at[:, None, None], axis=1), cache


def same_vocabulary(model: Any, target: Any) -> None:
    """Refuse a model that calls tokens by other ids than the target does.

    Raises:
        ValueError: it is no model, the token maps differ, or (where one is unknown) the
            vocabulary sizes.
    """
    if not hasattr(model, "extend"):
        raise ValueError(
            f"model: must be a Target, got {type(model).__name__}; specjax.load(name) makes one"
        )
    ours, theirs = (getattr(m, "tokenizer", None) for m in (model, target))
    if ours is not None and theirs is not None:
        if ours.vocabulary != theirs.vocabulary:
            raise ValueError(
                "drafter: its model has another token map than the target; "
                "draft with a model of the same tokenizer"
            )
    elif model.vocab_size != target.vocab_size:
        raise ValueError(
            f"drafter: its model has {model.vocab_size} tokens, the target "
            f"{target.vocab_size}; draft with a model of the same vocabulary"
        )


def shown_layers(target: Any, drafter: str) -> int:
    """How many layers the target lets a drafter choose from.

    Raises:
        ValueError: it shows none.
    """
    if target.num_layers < 1:
        raise ValueError(
            f"drafter: {drafter} runs some of the target's layers, and this target shows none "
            "(an adapted module runs whole); use NGram or DraftModel"
        )
    return target.num_layers
