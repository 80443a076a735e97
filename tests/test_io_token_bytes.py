"""The bytes behind each token join to the text that the tokenizer decodes."""

import pytest
import tokenizers
from test_io_text_stream import TEXTS, byte_level, sentencepiece
from tokenizers import decoders, models

from specjax.io import Tokenizer
from specjax.io.gguf_tokenizer import tokenizer_from_metadata


@pytest.mark.parametrize(("kind", "start"), [(byte_level, ""), (sentencepiece, " ")])
def test_the_bytes_of_a_text_join_to_it(kind, start):
    """SentencePiece puts a space before a text, which its decoder takes away again."""
    tokenizer = tokenizer_from_metadata(kind(), "m.gguf")
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        found = b"".join(tokenizer.token_bytes[i] for i in ids)
        assert found.decode() == (start + text if ids else "")


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_every_token_adds_its_bytes_after_a_beginning(kind):
    """Whole characters only: a part of one is decoded as U+FFFD."""
    tokenizer = tokenizer_from_metadata(kind(), "m.gguf")
    begin = tokenizer.encode("c")
    assert len(tokenizer.token_bytes) == max(tokenizer.vocabulary.values()) + 1
    for index, added in enumerate(tokenizer.token_bytes):
        whole = tokenizer.decode([*begin, index])
        if "\ufffd" not in whole:
            assert whole.encode() == tokenizer.decode(begin).encode() + added


def test_special_tokens_and_missing_ids_add_nothing():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "Ġb": 4}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens(["<think> é"])
    found = Tokenizer(backend).token_bytes
    ids = [backend.token_to_id(t) for t in ("<|end|>", "<think> é")]
    assert [found[i] for i in (0, 4, 1, *ids)] == [b"a", b" b", b"", b"", "<think> é".encode()]
    assert set(found) == {b"", b"a", b" b", "<think> é".encode()}


def test_a_tokenizer_of_another_kind_is_named():
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match=r"tokenizer: its decoder \(WordPiece\) does not say"):
        _ = Tokenizer(backend).token_bytes
