"""``specjax datastore``: a store of texts to draft from, and what was written."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from specjax.io.datastore import (
    build_datastore,
    describe_datastore,
    read_documents,
    save_datastore,
)
from specjax.io.load import open_checkpoint
from specjax.io.tokenizer import Tokenizer


def run(args: argparse.Namespace) -> int:
    """Read the files, sort and write.

    Raises:
        ValueError: an argument is out of range, or a file is broken or of another kind.
        OSError: a file cannot be read or written.
    """
    begin = time.perf_counter()
    out, files = Path(args.out), [Path(file) for file in args.files]
    if out.is_dir():  # said before the work, not after it
        raise ValueError(f"path: {out} is a folder; name a file in it")
    tokenizer = tokenizer_of(args.tokenizer)
    _note(f"reading {len(files)} files")
    store = build_datastore(
        read_documents(files), tokenizer=tokenizer, sorted_length=args.sorted_length
    )
    _note(f"writing {out}")
    save_datastore(store, out, sources=[file.name for file in files])
    seconds, about = time.perf_counter() - begin, describe_datastore(out)
    size = out.stat().st_size
    if args.json:
        print(json.dumps({"file": str(out), **about, "bytes": size, "seconds": seconds}))
    else:
        _note(
            f"wrote {about['num_tokens']} tokens of {about['num_documents']} documents, "
            f"{size / 1e6:.1f} MB, in {seconds:.1f} s"
        )
    return 0


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a model, or of a folder that holds nothing else; reads no weights.

    Raises:
        ValueError: there is no such model, or it has no tokenizer.
    """
    if (Path(name) / "tokenizer.json").exists():
        return Tokenizer.from_folder(name)
    tokenizer = open_checkpoint(name).tokenizer()
    if tokenizer is None:
        raise ValueError(f"--tokenizer: {name} has none; name a model that has")
    return tokenizer


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
