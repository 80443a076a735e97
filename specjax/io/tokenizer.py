"""Text to token ids and back, with the model's chat template; needs no torch."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from specjax.io.files import write_json
from specjax.io.token_bytes import token_bytes

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>")
"""Tokens that close a turn; one ends the generation where the chat template writes it."""


class Tokenizer:
    """A ``tokenizers`` tokenizer with chat template and stop ids.

    Equal, and of one hash, are tokenizers that map alike: vocabulary, merges, template, special
    tokens and stop ids decide, so that loading a model twice compiles nothing twice.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        """Wrap ``backend``.

        Args:
            backend: a tokenizer of the ``tokenizers`` library.
            chat_template: a Jinja template as Hugging Face stores it.
            special_tokens: what the template calls ``bos_token``, ``eos_token`` and so on.
            stop_ids: ids that end a generation; end-of-turn tokens of the template are added.
        """
        self.backend = backend
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self._stop_ids = tuple(sorted({*stop_ids, *_end_of_turn_ids(backend, chat_template)}))
        self.fingerprint = self._digest()

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json and the files that go with it.

        Raises:
            FileNotFoundError: there is no tokenizer.json.
            ValueError: a file is corrupt.
        """
        folder = Path(folder)
        backend = _read_backend(folder / "tokenizer.json")
        settings = _read_optional(folder / "tokenizer_config.json")
        special = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in settings.items()
            if name.endswith("_token") and isinstance(token, str | dict)
        }
        eos = backend.token_to_id(special.get("eos_token", ""))
        stop_ids = [] if eos is None else [eos]
        for name in ("config.json", "generation_config.json"):
            ids = _read_optional(folder / name).get("eos_token_id")
            stop_ids += ids if isinstance(ids, list) else [] if ids is None else [ids]
        return cls(
            backend,
            chat_template=_read_chat_template(folder, settings),
            special_tokens=special,
            stop_ids=stop_ids,
        )

    def save(self, folder: str | Path) -> None:
        """Write what ``from_folder`` reads again, and transformers' ``AutoTokenizer`` too.

        These are tokenizer.json, tokenizer_config.json (with the template and special tokens) and,
        for the stop ids, generation_config.json.
        """
        folder = Path(folder)
        folder.joinpath("tokenizer.json").write_text(
            self.backend.to_str(pretty=True), encoding="utf-8"
        )
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens}
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        write_json(folder / "tokenizer_config.json", settings)
        write_json(folder / "generation_config.json", {"eos_token_id": [*self.stop_ids]})

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a generation, in ascending order."""
        return self._stop_ids

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token, special ones included, with its id."""
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that ``decode`` leaves out."""
        return self._special_ids

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    @property
    def byte_ids(self) -> frozenset[int]:
        """The ids of bytes (``<0x0A>``), with which SentencePiece spells unknown characters."""
        return self._byte_ids

    @cached_property
    def _byte_ids(self) -> frozenset[int]:
        ids = (self.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(index for index in ids if index is not None)

    @property
    def token_bytes(self) -> tuple[bytes, ...]:
        """What each id adds to a text; nothing where it is special or no token has it."""
        return self._token_bytes

    @cached_property
    def _token_bytes(self) -> tuple[bytes, ...]:
        return token_bytes(self.backend, self.special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Turn text into ids, with the tokens that the model wants around a text, if any."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn ids into text, without special tokens; broken UTF-8 becomes U+FFFD."""
        return self.backend.decode([int(token) for token in tokens], skip_special_tokens=True)

    def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Turn a conversation into the ids of a prompt that asks for the next answer."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
        """Turn a conversation into the text of that prompt, in Jinja's sandbox.

        Args:
            messages: dicts with "role" and "content", oldest first.

        Raises:
            ValueError: there are no messages, or there is no template, or it refuses them.
        """
        if self.chat_template is None:
            raise ValueError("this tokenizer has no chat template; pass the prompt as a string")
        if not messages:
            raise ValueError("messages is empty; pass at least one message with role and content")
        from jinja2 import TemplateError

        try:
            return _render(self.chat_template, list(messages), self.special_tokens)
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refuses messages: {error}") from error

    def _digest(self) -> str:
        parts = {
            "backend": self.backend.to_str(),
            "chat_template": self.chat_template,
            "special_tokens": self.special_tokens,
            "stop_ids": self._stop_ids,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Tokenizer({self.backend.get_vocab_size()} tokens, {self.fingerprint[:12]})"


def _end_of_turn_ids(backend: tokenizers.Tokenizer, template: str | None) -> list[int]:
    written = [token for token in END_OF_TURN if template and token in template]
    ids = (backend.token_to_id(token) for token in written)
    return [index for index in ids if index is not None]


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    content = path.read_text(encoding="utf-8")
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is corrupt or too new ({error}); fetch it again") from error


def _read_optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch it again") from error
    return content if isinstance(content, dict) else {}


def _read_chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _render(template: str, messages: list[dict[str, str]], special: dict[str, Any]) -> str:
    """Render as transformers does, whose import would tell the user about a missing torch."""
    logger = logging.getLogger("transformers")
    logger.addFilter(_says_something)
    try:
        from transformers.utils.chat_template_utils import render_jinja_template
    finally:
        logger.removeFilter(_says_something)
    rendered, _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, **special
    )
    return rendered[0]


def _says_something(record: logging.LogRecord) -> bool:
    return "PyTorch was not found" not in record.getMessage()
