"""The bytes behind each token: what automata over text (stop strings, grammars) walk along."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

import tokenizers

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"


def token_bytes(backend: tokenizers.Tokenizer, special: frozenset[int]) -> tuple[bytes, ...]:
    """What each id adds to a text that already has a beginning.

    Special tokens add nothing, nor do ids that no token has. At the very start of a text some
    decoders drop a space; here it is kept.

    Raises:
        ValueError: the tokenizer spells its tokens in a way that is not known here.
    """
    spelled = _speller(backend)
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        if index not in special:
            found[index] = token.encode() if index in added else spelled(token)
    return tuple(found)


def _speller(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """How this kind of tokenizer writes bytes as a token, told by its decoder."""
    decoder = json.loads(backend.to_str())["decoder"] or {}
    kinds = {decoder.get("type")} | {part["type"] for part in decoder.get("decoders", ())}
    if "ByteLevel" in kinds:
        return partial(_byte_level, _byte_level_alphabet())
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece
    raise ValueError(
        f"tokenizer: its decoder ({', '.join(sorted(map(str, kinds)))}) does not say which bytes a "
        "token stands for; use a byte-level or SentencePiece tokenizer"
    )


def _byte_level(alphabet: dict[str, int], token: str) -> bytes:
    if alphabet.keys() >= set(token):
        return bytes(alphabet[c] for c in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_WORD_START, " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 as itself and other bytes from U+0100 on (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
