"""Streamed text: whole characters only, and in the end exactly the decoded text."""

import random

import pytest
from tokenizers import pre_tokenizers

from specjax.io import TextStream
from specjax.io.gguf_tokenizer import tokenizer_from_metadata

TEXTS = [
    "The capital of France is Paris.",
    "  two leading spaces\n\n\tthen a tab ",
    "Ünïcödé, Ελληνικά, русский, עברית, हिन्दी, 中文字符, 日本語",
    "emoji 🤖🏳️‍🌈👩‍👩‍👧‍👦 and a flag 🇫🇷",
    "a literal replacement \ufffd and a null \x00 in between",
    "",
    " ",
]


def byte_level():
    """A token for every byte, and two that are parts of an emoji or end within one."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["Ġc", "ðŁ", "ĠðŁ"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<|end|>", *bytes_, *merged],
        "tokenizer.ggml.token_type": [3] + [1] * 259,
        "tokenizer.ggml.merges": ["Ġ c", "ð Ł", "Ġ ðŁ"],
    }


def sentencepiece():
    """A token for every byte, and some words that carry their leading space."""
    pieces = ["▁", "▁▁", "▁c", "▁The", "Th", "The", "e", "T", "h", "a", "c", "b"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces],
        "tokenizer.ggml.scores": [-float(i) for i in range(257 + len(pieces))],
        "tokenizer.ggml.token_type": [2] + [6] * 256 + [1] * len(pieces),
    }


@pytest.fixture(params=[byte_level, sentencepiece])
def either(request):
    return tokenizer_from_metadata(request.param(), "m.gguf")


def stream(tokenizer, ids, size=1):
    text_stream = TextStream(tokenizer)
    pieces = [text_stream.push(ids[at : at + size]) for at in range(0, len(ids), size)]
    return [*pieces, text_stream.flush()]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_streamed_pieces_join_to_the_decoded_text(either, size):
    for text in TEXTS:
        ids = either.encode(text)
        assert "".join(stream(either, ids, size)) == either.decode(ids) == text


def test_no_piece_holds_half_a_character(either):
    ids = either.encode("a🤖b中 🏳️‍🌈")
    pieces = stream(either, ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert any("🤖" in piece for piece in pieces[:-1])  # as soon as it is whole
    assert len([piece for piece in pieces if piece]) > 3


def test_streams_of_random_tokens_join_to_the_decoded_text(either):
    rng = random.Random(0)
    size = either.backend.get_vocab_size()
    for length in [1, 2, 3, 5, 8, 40] * 60:
        # Half of them from the first 260: bytes and special tokens, mostly no valid text.
        ids = [rng.randrange(rng.choice([260, size])) for _ in range(length)]
        assert "".join(stream(either, ids)) == either.decode(ids), ids


def test_a_flushed_stream_begins_anew(either):
    text_stream = TextStream(either)
    for _ in range(2):
        ids = either.encode("🤖")
        assert text_stream.push(ids[:-1]) == ""
        held = text_stream.flush()
        assert held == either.decode(ids[:-1])
        assert text_stream.flush() == ""
