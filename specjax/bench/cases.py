"""The drafters that need no training, as they are compared, and what each round of theirs costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax import rng
from specjax.adaptive import Adaptive
from specjax.api import Decoder
from specjax.bench.costs import time_passes
from specjax.bench.replay import Foretold
from specjax.datastore import Datastore
from specjax.drafters import EarlyExit, Lookahead, NGram, Retrieval, Suffix, first_of
from specjax.metrics import Metrics

LENGTHS = (2, 4, 7)
EXITS = (8, 15, 22)
WIDTHS = (0, 2, 4, 7)


@dataclasses.dataclass(frozen=True)
class RoundCosts:
    """Times over that of a plain pass.

    ``passes`` are those of passes over 0, 2, 4 and 7 draft nodes, ``draft`` is that of drafting
    once (text) or one token (layers).
    """

    passes: tuple[float, ...]
    draft: float
    per_token: bool = False

    @classmethod
    def measure(cls, target: Any, drafter: Any, prompt: list[int]) -> RoundCosts:
        """Time a drafter of 7 tokens and its passes after a prompt."""
        drafts, passes = time_passes(
            Decoder(target, drafter), prompt, WIDTHS, 3, {"max_new_tokens": 64}
        )
        draft = drafts / passes[0] / (drafter.depth if drafter.samples else 1)
        return cls(tuple(cost / passes[0] for cost in passes), draft, drafter.samples)

    def by_length(self) -> list[float]:
        """Cost of the pass for drafts of 0 to 7 tokens, of the widths compiled."""
        fits = [next(i for i, width in enumerate(WIDTHS) if width >= n) for n in range(8)]
        return [self.passes[i] for i in fits]

    def speedup(self, metrics: Metrics, fixed: int | None) -> float:
        """Tokens over what their rounds cost; with a ``fixed`` length a pass is that or plain."""
        passes, total = self.by_length(), 0.0
        for length, rounds in enumerate(metrics.draft_length_histogram):
            length = fixed if fixed and (length or self.per_token) else length
            drafting = self.draft * (length if self.per_token else 1)
            total += rounds * (passes[length] + drafting)
        return metrics.num_tokens / total

    def policy(self) -> Adaptive:
        """Adapt by these costs."""
        return Adaptive(
            jnp.asarray(self.by_length(), jnp.float32), self.draft if self.per_token else 0.0
        )


def text_drafters(store: Datastore, length: int) -> dict[str, Any]:
    """Drafters that read text alone."""
    return {
        "n-gram, matches from 1": NGram(length, min_ngram=1),
        "n-gram, matches from 2": NGram(length, min_ngram=2),
        "n-gram, matches from 3": NGram(length, min_ngram=3),
        "suffix": Suffix(length),
        "suffix and store": Suffix(length, store=store),
        "suffix tree of 12 nodes": Suffix(length, num_nodes=12),
        "retrieval": Retrieval(store, length),
        "retrieval tree of 12 nodes": Retrieval(store, length, num_nodes=12, min_match=1),
    }


def exit_drafters(scripts: dict[int, Int[Array, "B L"]], length: int) -> dict[str, Any]:
    """What early exits would draft, and n-grams before the last of them."""
    drafters: dict[str, Any] = {
        f"early exit after {layers}": Foretold(script, length) for layers, script in scripts.items()
    }
    last = Foretold(scripts[max(scripts)], length)
    return {**drafters, "n-gram, then early exit": first_of(NGram(length, min_ngram=2), last)}


def timed_drafters(store: Datastore) -> dict[str, Any]:
    """Those that are run as they are, with real passes."""
    return {
        "n-gram, K = 4": NGram(4),
        "n-gram, K = 7, adaptive": NGram(7),
        "suffix, K = 7, adaptive": Suffix(7),
        "retrieval, K = 4": Retrieval(store, 4),
        "lookahead, N = 4, W = 5, G = 3": Lookahead(ngram=4, window=5, num_candidates=3),
        f"early exit after {EXITS[-1]}, K = 2": EarlyExit(EXITS[-1], 2),
        "n-gram, then early exit, K = 2": first_of(NGram(2, min_ngram=2), EarlyExit(EXITS[-1], 2)),
    }


def exit_scripts(
    target: Any, texts: Sequence[list[int]], begins: Sequence[int], temperature: float
) -> dict[int, Int[np.ndarray, "B L"]]:
    """What the layers up to each exit say of every position of each answer, drawn as the loop does.

    Under coupled verification: with the noise of the position.
    """
    longest = max(map(len, texts)) + 1
    scripts = {layers: np.zeros((len(texts), longest), np.int32) for layers in EXITS}
    num = max(len(text) - begin for text, begin in zip(texts, begins, strict=True))
    for row, (text, begin) in enumerate(zip(texts, begins, strict=True)):
        tokens = np.zeros((1, longest), np.int32)
        tokens[0, : len(text)] = text
        found = _predict(target, jnp.asarray(tokens), row, begin, num, temperature)
        for layers, drawn in zip(EXITS, found, strict=True):
            end = min(begin + num, longest)
            scripts[layers][row, begin:end] = np.asarray(drawn)[: end - begin]
    return scripts


@partial(jax.jit, static_argnames="num")
def _predict(target: Any, tokens: Int[Array, "1 L"], seed, begin, num: int, temperature) -> list:
    first = jnp.zeros(1, jnp.int32)
    cache = target.init_cache(*tokens.shape)
    capture = tuple(layers - 1 for layers in EXITS)
    count = jnp.full_like(first, tokens.shape[1])
    _, _, features = target.extend(tokens, first, cache, count=count, capture=capture)
    key = rng.row_keys(jnp.asarray(seed, jnp.uint32)[None])
    noise = rng.position_noise(key, jnp.asarray(begin, jnp.int32)[None], num, target.vocab_size)

    def drawn(feature: Float[Array, "1 L D"]):
        hidden = jax.lax.dynamic_slice_in_dim(feature, begin - 1, num, axis=1)
        logits = target.unembed(hidden)
        heat = jnp.where(temperature > 0, temperature, 1.0)
        return (logits / heat + jnp.where(temperature > 0, noise, 0.0)).argmax(-1)[0]

    return [drawn(feature) for feature in features]
