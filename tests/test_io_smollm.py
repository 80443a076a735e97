"""SmolLM2 as its file is: the tokenizer against a plain implementation, and its chats."""

from itertools import pairwise

import gguf
import pytest
import regex

from specjax.io import TextStream
from specjax.io.aliases import ALIASES
from specjax.io.fetch import fetch
from specjax.io.gguf import GGUFCheckpoint

pytestmark = pytest.mark.slow

TEXTS = [
    "The capital of France is Paris.",
    "  two leading spaces, and 12345 digits\n\n\tthen a tab ",
    "It's 7 o'clock; we'll go, they've said.",
    "Ünïcödé, Ελληνικά, русский, עברית, हिन्दी, 中文字符, 日本語",
    "emoji 🤖🏳️‍🌈👩‍👩‍👧‍👦 and a flag 🇫🇷",
    "def f(x):\n    return x ** 2  # squares\n",
    "a literal replacement \ufffd and a null \x00 in between",
    "",
    " ",
]


@pytest.fixture(scope="module")
def smollm():
    """The checkpoint of the alias, with its metadata."""
    return GGUFCheckpoint(fetch("smollm2-135m-instruct"))


def reference_encode(metadata, text):
    """Byte-pair encoding word by word, after Sennrich et al. 2016, with GPT-2's bytes and words."""
    words = regex.compile(
        r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
    )
    ranks = {tuple(m.split()): i for i, m in enumerate(metadata["tokenizer.ggml.merges"])}
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbol = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    result = []
    for word in words.findall(text):
        parts = [symbol[byte] for byte in word.encode()]
        while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
            best, merged = min(pairs, key=ranks.__getitem__), []
            while parts:
                taken = 2 if tuple(parts[:2]) == best else 1
                merged.append("".join(parts[:taken]))
                parts = parts[taken:]
            parts = merged
        result += [ids[part] for part in parts]
    return result


def test_smollm_equals_a_plain_implementation_of_bpe(smollm):
    tokenizer = smollm.tokenizer()
    stream = TextStream(tokenizer)
    for text in TEXTS:
        assert tokenizer.encode(text) == reference_encode(smollm.metadata, text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert stream.push(tokenizer.encode(text)) + stream.flush() == text
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]


def test_smollm_chats_with_its_default_system_message(smollm):
    tokenizer = smollm.tokenizer()
    prompt = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert ids.count(2) == 2  # <|im_end|> as one token
    assert tokenizer.stop_ids == (2,)
    assert len(tokenizer.vocabulary) == 49152
    assert smollm.tokenizer() == tokenizer


def test_the_alias_is_the_file_it_was(smollm):
    assert smollm.path.stat().st_size == ALIASES["smollm2-135m-instruct"].size
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(smollm.path).tensors}
    names = {kind.name for kind in kinds}
    assert names == {"F32", "Q4_1", "Q8_0"}
