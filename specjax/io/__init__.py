"""Weights and tokenizers from disk, a package index or the Hub."""

from specjax.io.checkpoint import Checkpoint
from specjax.io.datastore import (
    build_datastore,
    load_datastore,
    read_documents,
    save_datastore,
)
from specjax.io.load import load
from specjax.io.save import save
from specjax.io.text_stream import TextStream
from specjax.io.tokenizer import Tokenizer

__all__ = [
    "Checkpoint",
    "TextStream",
    "Tokenizer",
    "build_datastore",
    "load",
    "load_datastore",
    "read_documents",
    "save",
    "save_datastore",
]
