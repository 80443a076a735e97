"""``specjax convert``: a model in another form, and what was written."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from specjax.io.checkpoint import Checkpoint
from specjax.io.load import from_checkpoint, open_checkpoint
from specjax.io.orbax import OrbaxCheckpoint
from specjax.io.save import require_free, save


def run(args: argparse.Namespace) -> int:
    """Read the source and write it.

    Raises:
        ValueError: an argument is out of range, or does not go with another; the source is
            corrupt or not supported, or the folder holds something.
        OSError: the source cannot be read, or the folder not written.
    """
    quantize = getattr(args, "quantize", None)
    if quantize and args.to != "orbax":
        raise ValueError(f"--quantize: {quantize} is kept by orbax only; add --to orbax")
    folder = require_free(args.folder)
    begin = time.perf_counter()
    # Nothing is computed, and the whole need not fit an accelerator.
    with jax.default_device(_host()):
        _note(f"loading {args.source}")
        checkpoint = open_checkpoint(args.source)
        dtype = jnp.dtype(args.dtype) if "dtype" in args else widest_dtype(checkpoint)
        target = from_checkpoint(checkpoint, dtype, quantize=quantize)
        _note(f"writing {folder}")
        save(target, folder, format=args.to)
    files = files_of(folder)
    seconds = time.perf_counter() - begin
    if args.json:
        answer = {"folder": str(folder), "format": args.to, "dtype": dtype.name}
        total = sum(files.values())
        print(json.dumps(answer | {"files": files, "bytes": total, "seconds": seconds}))
    else:
        _note(*lines(files, seconds))
    return 0


def widest_dtype(checkpoint: Checkpoint | OrbaxCheckpoint) -> jnp.dtype:
    """The type that holds every weight of a checkpoint without loss (float32 for float64)."""
    if isinstance(checkpoint, OrbaxCheckpoint):
        dtypes = {checkpoint.dtype(name) for name in checkpoint.names()}
    else:  # reading nothing of a tensor tells its type
        dtypes = {checkpoint.read(name, (slice(0, 0),)).dtype for name in checkpoint.names()}
    floating = {jnp.dtype(dtype).name for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
    return jnp.dtype(floating.pop() if floating in ({"bfloat16"}, {"float16"}) else jnp.float32)


def files_of(folder: Path) -> dict[str, int]:
    """The size of every file, by its path within the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def lines(files: dict[str, int], seconds: float) -> list[str]:
    """A line for every file or folder, and one for all.

    >>> for line in lines({"config.json": 70_000, "orbax/a": 2_000_000, "orbax/b": 500_000}, 1.25):
    ...     print(line.strip())
    0.1 MB  config.json
    2.5 MB  orbax/
    wrote 3 files, 2.6 MB, in 1.2 s
    """
    sizes: dict[str, int] = {}
    for name, size in files.items():
        top, inside, _ = name.partition("/")
        sizes[top + inside] = sizes.get(top + inside, 0) + size
    total = sum(sizes.values())
    return [
        *(f"{size / 1e6:10.1f} MB  {name}" for name, size in sizes.items()),
        f"wrote {len(files)} files, {total / 1e6:.1f} MB, in {seconds:.1f} s",
    ]


def _host() -> Any:
    """The CPU, unless JAX_PLATFORMS leaves it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _note(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)
