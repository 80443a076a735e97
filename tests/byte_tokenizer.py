"""A byte-level tokenizer of a few tokens, written out by the test that wants it."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax.io import Tokenizer

SPELL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def spelled(text):
    """A text as byte-level BPE writes it: one sign for each of its bytes."""
    return SPELL.pre_tokenize_str(text)[0][0]


def byte_tokenizer(special, texts, cut="", stop_ids=()):
    """Ids in order: special tokens, tokens of these texts, and one for each byte of ``cut``."""
    pieces = [*special, *map(spelled, texts), *(spelled(cut) if cut else "")]
    backend = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.add_special_tokens(list(special))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, stop_ids=stop_ids)
