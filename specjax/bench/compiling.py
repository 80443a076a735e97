"""How long the whole program takes to compile, and whether what comes out copies a cache.

python -m specjax.bench.compiling

Thirty thin layers, on the machine's own device: what counts is the number of operations. Two
cores: expect 15 to 70 seconds a line, and no copies. Needs the test extra.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import jax

from specjax import compiled
from specjax.api import Decoder
from specjax.drafters import DraftModel, DraftTree, NGram
from specjax.testing import tiny_lm

LAYERS, SLOWEST, SLOTS = 30, 40.0, 512


def main() -> int:
    """Print a line a program; 1 where one takes too long or copies a cache."""
    layer = tiny_lm(jax.random.key(0)).config.layers[0]
    target = tiny_lm(jax.random.key(0), layers=[layer] * LAYERS, vocab_size=512)
    draft = tiny_lm(jax.random.key(1), vocab_size=512)
    cases: dict[str, tuple[Any, tuple[int, ...] | None]] = {
        "plain": (None, None),
        "n-gram": (NGram(8), None),
        "n-gram, four widths": (NGram(8), (0, 2, 4)),
        "draft model, four widths": (DraftModel(draft, 8), (0, 2, 4)),
        "draft tree, four widths": (DraftTree(draft, (3, 2, 1)), (0, 3, 9)),
    }
    kept = True
    for name, (drafter, widths) in cases.items():
        decoder = Decoder(target, drafter, widths=widths)
        call = decoder.prepare([[1, 2, 3]], max_new_tokens=SLOTS - 3 - 64)
        begin = time.perf_counter()
        program = compiled.generate.lower(call.program, call.request, chunk=8).compile()
        seconds = time.perf_counter() - begin
        slots = call.request.tokens.shape[1] + decoder.program.drafter.num_nodes + 1
        copies = len(cache_copies(program.as_text() or "", f"1,{slots},16"))
        kept &= seconds < SLOWEST and copies == 0
        print(
            f"{name:28} {seconds:6.1f} s  (< {SLOWEST:.0f})   {copies} copies of a cache",
            flush=True,
        )
    return 0 if kept else 1


def cache_copies(text: str, shape: str) -> list[str]:
    """Copies of arrays of ``shape`` in a compiled program, outside fused computations.

    A copy of a broadcast is the zeros that a cache begins with, written once a call.
    """
    found, fused = [], False
    for line in text.splitlines():
        if line.startswith(("%fused", "fused")):
            fused = True
        elif line.startswith("}"):
            fused = False
        elif not fused and re.search(rf"= f32\[{shape}\]\S* copy\(", line):
            found += [line.strip()] if "broadcast" not in line else []
    return found


if __name__ == "__main__":
    sys.exit(main())
