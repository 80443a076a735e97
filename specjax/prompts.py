"""From what a user calls a prompt (text, token ids, chat messages) to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Message = dict[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


def encode(prompts: Prompt | Sequence[Prompt], tokenizer: Any, vocab_size: int) -> list[list[int]]:
    """Turn one prompt, or several, into rows of token ids.

    Raises:
        ValueError: a prompt is empty, an id is outside the vocabulary, or text comes without a
            tokenizer.
    """
    batch = as_batch(prompts)
    return [
        encode_one(p, tokenizer, vocab_size, f"prompts: prompt {i}") for i, p in enumerate(batch)
    ]


def as_batch(prompts: Any) -> list[Any]:
    """Tell one prompt from several: a string, token ids or chat messages are one.

    >>> as_batch("a"), as_batch([1, 2]), as_batch([[1, 2], "b"])
    (['a'], [[1, 2]], [[1, 2], 'b'])
    """
    if isinstance(prompts, str):
        return [prompts]
    batch = listed(prompts)
    if not batch:
        raise ValueError("prompts: is empty; give a string, token ids or chat messages")
    return [batch] if is_int(batch[0]) or isinstance(batch[0], dict) else batch


def encode_one(
    prompt: Any, tokenizer: Any, vocab_size: int, name: str, *, continues: bool = False
) -> list[int]:
    """Token ids of one prompt, called ``name`` in errors.

    A text that ``continues`` another gets none of the tokens that a tokenizer puts around texts.
    """
    ids = _ids(prompt, tokenizer, name, continues)
    if not ids:
        raise ValueError(f"{name} is empty; give it at least one token")
    outside = [t for t in ids if not 0 <= t < vocab_size]
    if outside:
        raise ValueError(
            f"{name} has token id {outside[0]}, outside the vocabulary of {vocab_size}"
        )
    return ids


def _ids(prompt: Any, tokenizer: Any, name: str, continues: bool) -> list[int]:
    if not isinstance(prompt, str):
        prompt = listed(prompt)
        if all(is_int(t) for t in prompt):
            return [int(t) for t in prompt]
        if not all(isinstance(x, dict) for x in prompt):
            raise ValueError(f"{name} must be text, token ids or chat messages, got {prompt!r}")
    if tokenizer is None:
        raise ValueError(
            f"{name} is text, which needs a tokenizer, and the target has none; give token ids, "
            "or Decoder(..., tokenizer=...)"
        )
    if not isinstance(prompt, str):
        return tokenizer.apply_chat_template(prompt)
    return tokenizer.encode(prompt, add_special_tokens=not continues) if prompt else []


def is_int(value: Any) -> bool:
    """Whether a value is a whole number, numpy's included and bools not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def listed(values: Any) -> list[Any]:
    """List what is a sequence or an array; anything else is a list of itself."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return list(values) if isinstance(values, Sequence | set) else [values]
