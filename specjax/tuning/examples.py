"""What is decoded to tune by, where a user gives no prompts: an edit, a summary and a list."""

from __future__ import annotations

from typing import Any

from specjax.prompts import Prompt

_STORY = (
    "The ferry to the island leaves twice a day, at eight in the morning and at five in the "
    "afternoon. Tickets are sold on the pier and cost four coins, or three for those who live on "
    "the island. Bicycles travel free of charge, but there is room for ten of them only, so that "
    "in summer it is wise to be early. When the wind is strong the ferry stays in the harbour, and "
    "a red flag is hoisted over the ticket office."
)

TEXTS = (
    f"Rewrite this text with every 'ferry' changed to 'boat', and change nothing else:\n\n{_STORY}",
    f"Summarise this text in two sentences:\n\n{_STORY}",
    "List ten things to pack for a week on an island, each with one short reason.",
)


def default_prompts(target: Any) -> list[Prompt]:
    """The built-in texts, as chats where the tokenizer has a template.

    Raises:
        ValueError: the target has no tokenizer.
    """
    tokenizer = getattr(target, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(
            "prompts: the target has no tokenizer for the built-in texts; give lists of token ids"
        )
    if getattr(tokenizer, "chat_template", None) is None:
        return list(TEXTS)
    return [[{"role": "user", "content": text}] for text in TEXTS]
