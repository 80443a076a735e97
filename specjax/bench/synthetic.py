"""Speculation at an acceptance rate that is set, not found: what a plan predicts can be measured.

A model with random weights accepts next to nothing, and in bfloat16 two passes of different widths
soon part. So rows are held to a text that was decoded once, and drafts are that text with mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.api import Decoder
from specjax.bench.replay import Foretold
from specjax.request import aligned
from specjax.types import Sampling


@struct.dataclass
class HeldTo:
    """A ``Processor`` that makes every row say its text: the passes are real, the choice is not.

    A processor is not told which row it is in, so each prompt must begin with its row's number.
    """

    texts: Int[Array, "B L"]

    @classmethod
    def nothing(cls, batch: int, length: int) -> HeldTo:
        """Let rows say what they will; the program is that of texts of ``length`` tokens."""
        return cls(jnp.full((batch, length + 1), -1, jnp.int32))

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> HeldTo:
        """Hold each row to a text, prompt included."""
        return cls(jnp.asarray(aligned(texts, max(map(len, texts)) + 1)))

    def init(
        self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Which row this is, and where in its text."""
        return tokens[0] + 0, length + 0

    def advance(self, h: tuple, token: Int[Array, ""]) -> tuple:
        return h[0], h[1] + 1

    def follow(self, h: tuple, path: Int[Array, " K"], depth: Int[Array, ""]) -> tuple:
        return h[0], h[1] + depth

    def apply(self, logits: Float[Array, " V"], h: tuple, row: Sampling) -> Float[Array, " V"]:
        """Raise the text's next token above all others."""
        ids = jnp.arange(logits.shape[0], dtype=jnp.int32)
        said = self.texts[h[0], jnp.minimum(h[1], self.texts.shape[1] - 1)]
        return jnp.where(ids == said, logits + 1e6, logits)


def with_mistakes(
    texts: Sequence[Sequence[int]],
    rate: float,
    *,
    draft_length: int,
    vocab_size: int,
    seed: int = 0,
) -> Foretold:
    """Draft each row's text, every token of it wrong with probability 1 - ``rate``, on its own.

    E is then that of ``specjax.metrics.expected_acceptance_length([rate] * draft_length)``.

    >>> with_mistakes([[1, 2, 3]], 1.0, draft_length=2, vocab_size=9).script.tolist()
    [[1, 2, 3, 0]]
    >>> with_mistakes([[1, 2, 3]], 0.0, draft_length=2, vocab_size=9).script.tolist()
    [[2, 3, 4, 1]]

    Raises:
        ValueError: ``rate`` is not within 0..1.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate: must be from 0 to 1, got {rate}")
    script = aligned(texts, max(map(len, texts)) + 1)
    wrong = np.random.default_rng(seed).random(script.shape) >= rate
    return Foretold(jnp.asarray(np.where(wrong, (script + 1) % vocab_size, script)), draft_length)


def at_rate(
    target: Any,
    prompts: Sequence[Sequence[int]],
    rate: float,
    *,
    draft_length: int,
    max_new_tokens: int,
) -> tuple[Decoder, Decoder]:
    """Plain and speculative decoding held to what ``target`` says once, its drafts right at a rate.

    Each prompt must begin with the number of its row. What is to be timed are greedy calls without
    stop tokens, of ``max_new_tokens`` in every row.

    Raises:
        ValueError: ``rate`` is not within 0..1, or a prompt begins otherwise.
    """
    if any(prompt[0] != row for row, prompt in enumerate(prompts)):
        raise ValueError("prompts: each must begin with the number of its row, from 0 on")
    longest = max(map(len, prompts)) + max_new_tokens
    free = Decoder(target, processors=(HeldTo.nothing(len(prompts), longest),))
    answers = free.generate(prompts, max_new_tokens=max_new_tokens, stop_token_ids=[]).tokens
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    drafter = with_mistakes(texts, rate, draft_length=draft_length, vocab_size=target.vocab_size)
    held = (HeldTo.of(texts),)
    return Decoder(target, processors=held), Decoder(target, drafter, processors=held)
