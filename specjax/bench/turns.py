"""From questions to rows that are ready to decode: prompts of every turn, groups, one capacity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp

from specjax import grammar
from specjax.api import Decoder
from specjax.bench.questions import Question
from specjax.call import Call
from specjax.prompts import Prompt

MAX_NEW_TOKENS = 128
LEAST_CAPACITY = 512
"""Tokens a row up to which no second program is compiled for shorter rows."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One question to the model: turn ``number`` (from 1), its prompt, and a row's settings."""

    question: Question
    number: int
    prompt: list[int]
    settings: dict[str, Any]

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the longest answer."""
        return len(self.prompt) + self.settings["max_new_tokens"]


@dataclasses.dataclass(frozen=True)
class Group:
    """Turns of one category that are decoded together.

    The last group of a category is filled with its turns from the front, ``num_repeated`` of them.
    """

    category: str
    turns: tuple[Turn, ...]
    num_repeated: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of ``Decoder.generate``, one value a row."""
        names = {name for turn in self.turns for name in turn.settings}
        return {name: [turn.settings.get(name) for turn in self.turns] for name in sorted(names)}


@dataclasses.dataclass(frozen=True)
class Asking:
    """How all questions are asked.

    ``temperature`` and ``max_new_tokens`` None: each question's own, or 0 and 128.
    """

    temperature: float | None = None
    max_new_tokens: int | None = None
    seed: int = 0

    def settings(self, question: Question, number: int, tokenizer: Any) -> dict[str, Any]:
        """Settings of the row that answers the question of this number."""
        own = (question.temperature or 0.0, question.max_new_tokens or MAX_NEW_TOKENS)
        heat = own[0] if self.temperature is None else self.temperature
        budget = own[1] if self.max_new_tokens is None else self.max_new_tokens
        settings = {"max_new_tokens": budget, "temperature": heat, "seed": self.seed + number}
        if question.json_schema is not None:
            try:
                settings["grammar"] = _json_schema(question.json_schema, tokenizer)
            except ImportError as error:
                raise ValueError(f"questions: {question.id} has a JSON schema; {error}") from error
        return settings


_json_schema = lru_cache(grammar.json_schema)


def ask(plain: Decoder, questions: Sequence[Question], asking: Asking) -> Iterator[Turn]:
    """Every turn of every question, in the chat template of the model.

    A later turn's prompt holds the earlier ones with the answers of plain decoding, so that all
    who are compared are asked the same.

    Args:
        plain: decodes the answers that later turns need.
        questions: in the order in which seeds are dealt, one a question.
        asking: temperature, budget and first seed.

    Raises:
        ValueError: a prompt and its budget do not fit, or a schema cannot be followed.
    """
    for number, question in enumerate(questions):
        settings = asking.settings(question, number, plain.tokenizer)
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(question.turns, start=1):
            messages.append({"role": "user", "content": text})
            (prompt,) = plain.encode([conversation(messages, plain.tokenizer)])
            try:
                plain.prepare([prompt], **settings)  # refuses what does not fit
            except ValueError as error:
                raise ValueError(f"questions: {question.id}, turn {turn}: {error}") from error
            yield Turn(question, turn, prompt, settings)
            if turn < len(question.turns):
                texts = plain.generate([prompt], **settings).texts
                messages.append({"role": "assistant", "content": texts[0] if texts else ""})


def conversation(messages: list[dict[str, str]], tokenizer: Any) -> Prompt:
    r"""The messages themselves; a text of them where the model has no chat template.

    >>> conversation([{"role": "user", "content": "Hi"}, {"role": "user", "content": "Ho"}], None)
    'Hi\n\nHo'
    """
    if getattr(tokenizer, "chat_template", None) is not None:
        return messages
    return "\n\n".join(message["content"] for message in messages)


def groups_of(turns: Sequence[Turn], batch: int) -> list[Group]:
    """Put turns of the same category together, ``batch`` at a time."""
    by_category: dict[str, list[Turn]] = {}
    for turn in turns:
        by_category.setdefault(turn.question.category, []).append(turn)
    groups = []
    for category, every in by_category.items():
        for first in range(0, len(every), batch):
            rows = every[first : first + batch]
            missing = batch - len(rows)
            filled = [every[i % len(every)] for i in range(missing)]
            groups.append(Group(category, (*rows, *filled), missing))
    return groups


def capacity_of(length: int, longest: int) -> int:
    """Room for rows of ``length`` tokens, where the longest of all has ``longest``.

    One capacity for all, so that a program is compiled once: unused slots are never read. Only
    rows below a quarter of the longest get less, since allocating them for long ones takes time.

    >>> [capacity_of(n, 4000) for n in (4000, 1001, 1000, 100)]
    [4000, 4000, 1000, 1000]
    """
    capacity = longest
    while capacity // 4 >= max(length, LEAST_CAPACITY):
        capacity //= 4
    return capacity


def padded(call: Call, capacity: int) -> Call:
    """The same call with room for ``capacity`` tokens a row: its answer stays the same.

    Raises:
        ValueError: a row's prompt and budget need more.
    """
    request = call.request
    if capacity < (needed := int(request.limit.max())):
        raise ValueError(f"capacity: {capacity} is below the {needed} tokens of a row; raise it")
    tokens = request.tokens[:, :capacity]
    tokens = jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1])))
    return dataclasses.replace(call, request=dataclasses.replace(request, tokens=tokens))
