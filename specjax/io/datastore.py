"""Stores of texts from files of text or token ids, and in one file of their own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tqdm.auto import tqdm

from specjax.datastore import BORDER, Datastore, build, fingerprint_of
from specjax.protocols import Tokenizer

FORMAT, VERSION = "specjax_datastore", 1


def build_datastore(
    documents: Iterable[str | Sequence[int] | np.ndarray],
    *,
    tokenizer: Tokenizer | None = None,
    vocab_size: int | None = None,
    sorted_length: int = 16,
) -> Datastore:
    """Store documents, with a progress bar on a terminal; ``read_documents`` reads them from files.

    Args:
        documents: texts, or token ids.
        tokenizer: the target's, for texts. Its token map is remembered, so that a target of
            another is refused.
        vocab_size: the target's; as many as the tokenizer has if None.
        sorted_length: the longest match that can be looked for.

    Raises:
        ValueError: an argument is out of range, or there is no token in the documents.
    """
    fingerprint = None
    if tokenizer is not None:
        fingerprint = fingerprint_of(tokenizer.vocabulary)
        least = max(tokenizer.vocabulary.values()) + 1
        vocab_size = least if vocab_size is None else vocab_size
        if vocab_size < least:
            raise ValueError(
                f"vocab_size: {vocab_size} is less than the tokenizer's {least}; leave it out"
            )
    if vocab_size is None:
        raise ValueError(
            "vocab_size: is needed where there is no tokenizer; give the target's vocab_size"
        )
    return build(
        _encoded(documents, tokenizer),
        vocab_size=vocab_size,
        fingerprint=fingerprint,
        sorted_length=sorted_length,
    )


def read_documents(files: Iterable[str | os.PathLike[str]]) -> Iterator[str | np.ndarray]:
    """Read documents from files: texts from .txt and .jsonl, token ids from .npy.

    A .txt file is one document. A line of .jsonl is an object whose ``text`` is one, or each of
    whose ``turns``. An .npy file holds whole numbers in one row, in which -1 ends a document.

    Raises:
        ValueError: a file is of another kind, or broken.
        FileNotFoundError: there is no such file.
    """
    readers = {".txt": _read_text, ".jsonl": _read_lines, ".npy": _read_ids}
    for file in files:
        path = Path(file)
        if path.suffix not in readers:
            raise ValueError(
                f"files: {path} is none of .txt, .jsonl and .npy; convert it to one of them"
            )
        if not path.is_file():
            raise FileNotFoundError(f"files: {path} does not exist; check the path")
        yield from readers[path.suffix](path)


def save_datastore(
    store: Datastore, path: str | os.PathLike[str], *, sources: Sequence[str] = ()
) -> None:
    """Write a store to one .safetensors file, whole or not at all; an older one is replaced.

    Args:
        store: what ``build_datastore`` made.
        path: the file.
        sources: names to remember, of the files that the texts came from, say.

    Raises:
        ValueError: ``path`` is a folder.
        OSError: it cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path: {path} is a folder; name a file in it")
    tokens = np.asarray(store.tokens)
    borders = int((tokens == BORDER).sum())
    about = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "vocab_size": str(store.vocab_size),
        "sorted_length": str(store.sorted_length),
        "num_tokens": str(tokens.size - borders),
        "num_documents": str(borders),
        "sources": json.dumps(list(sources)),
    }
    if store.fingerprint is not None:
        about["fingerprint"] = store.fingerprint
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as beside:
        unfinished = Path(beside) / path.name
        arrays = {"tokens": tokens, "order": np.asarray(store.order)}
        save_file(arrays, unfinished, metadata=about)
        unfinished.replace(path)


def load_datastore(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Datastore:
    """Read a store that ``save_datastore`` wrote.

    Args:
        path: the file.
        tokenizer: the target's, to see at once that the store is for its token map.

    Raises:
        ValueError: it is no store, of a later format, corrupt, or of another vocabulary.
        FileNotFoundError: there is no such file.
    """
    about = describe_datastore(path)
    with _open(Path(path)) as file:
        tokens, order = file.get_tensor("tokens"), file.get_tensor("order")
    size, vocab_size = tokens.size, about["vocab_size"]
    if not (
        tokens.dtype == order.dtype == np.int32
        and tokens.shape == order.shape == (size,)
        and size
        and tokens[-1] == BORDER
        and BORDER <= tokens.min() <= tokens.max() < vocab_size
        and 0 <= order.min() <= order.max() < size
    ):
        raise ValueError(f"path: {path}: its tensors do not go together; build the store again")
    fingerprint = about["fingerprint"]
    store = Datastore(
        jnp.asarray(tokens), jnp.asarray(order), vocab_size, fingerprint, about["sorted_length"]
    )
    if tokenizer is not None:
        store.require_vocabulary(tokenizer.vocabulary)
    return store


def describe_datastore(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a store's file says about itself, without reading its tokens.

    Raises:
        ValueError: it is no store, of a later format, or corrupt.
        FileNotFoundError: there is no such file.
    """
    about = read_metadata(path)
    version = about.get("format_version")
    if version != str(VERSION):
        raise ValueError(
            f"path: {path} has format version {version}, this specjax reads {VERSION}; "
            "build the store again"
        )
    whole = ("format_version", "vocab_size", "sorted_length", "num_tokens", "num_documents")
    try:
        answer: dict[str, Any] = {name: int(about[name]) for name in whole}
        answer["sources"] = json.loads(about["sources"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"path: {path}: its metadata is incomplete or corrupt ({error}); build the store again"
        ) from error
    return answer | {"fingerprint": about.get("fingerprint")}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a store's file as it is written.

    Raises:
        ValueError: it is no store.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"path: {path} does not exist; specjax datastore build {path} FILES makes one"
        )
    with _open(path) as file:
        about = file.metadata() or {}
        if about.get("format") != FORMAT or set(file.keys()) != {"tokens", "order"}:
            raise ValueError(f"path: {path} is no store; specjax datastore build makes one")
    return about


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"path: {path} is truncated or no store ({error}); build it again"
        ) from error


def _encoded(documents: Iterable[Any], tokenizer: Any) -> Iterator[np.ndarray]:
    watch = tqdm(documents, desc="documents", unit="document", disable=None, leave=False)
    for number, document in enumerate(watch):
        if not isinstance(document, str):
            yield np.asarray(document)
            continue
        if tokenizer is None:
            raise ValueError(
                f"tokenizer: is needed, since document {number} is text; give the target's, "
                "or documents of token ids"
            )
        # A document is searched for what stands in the middle of texts.
        yield np.asarray(tokenizer.encode(document, add_special_tokens=False), np.int32)


def _read_text(path: Path) -> Iterator[str]:
    try:
        yield path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"files: {path} is not UTF-8 ({error}); convert it") from error


def _read_lines(path: Path) -> Iterator[str]:
    text = next(_read_text(path))
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield from _texts_of(line, f"files: {path}, line {number}:")


def _texts_of(line: str, where: str) -> list[str]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{where} is not a JSON object; write one a line")
    if "text" not in content and "turns" not in content:
        raise ValueError(f"{where} has neither a text nor turns; name one of the fields so")
    if "text" in content:
        if not isinstance(content["text"], str):
            raise ValueError(f"{where} text must be a string; mend it")
        return [content["text"]]
    turns = content["turns"]
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where} turns must be a list of texts; mend it")
    return turns


def _read_ids(path: Path) -> Iterator[np.ndarray]:
    try:
        ids = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"files: {path} is not an array ({error}); write it anew") from error
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"files: {path} must hold whole numbers in one row, got {ids.dtype} of shape "
            f"{ids.shape}; save token ids with numpy.save"
        )
    borders = np.flatnonzero(ids == BORDER)
    for part in np.split(ids, borders):
        yield part[1:] if part.size and part[0] == BORDER else part
