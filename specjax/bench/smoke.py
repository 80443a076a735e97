"""Speed promises as ratios, in about four minutes on two cores.

python -m specjax.bench.smoke "a prompt that asks for its own text again"
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from specjax import compiled
from specjax.api import Decoder
from specjax.bench.comparison import Comparison, compare
from specjax.bench.peers import load_peer
from specjax.bench.timing import interleaved_medians
from specjax.bench.turns import padded
from specjax.drafters import NGram, Suffix
from specjax.io.load import from_checkpoint, open_checkpoint
from specjax.request import Request

NUM_TOKENS = 64
TREE = Suffix(4, num_nodes=12)
USED_SLOTS, SLOTS, MORE_SLOTS = 64, 256, 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print each ratio beside what it should be, and return 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Speed promises as ratios within one run.")
    parser.add_argument("prompt", help="a prompt whose answer quotes it")
    parser.add_argument("--target", default="smollm2-135m-instruct", help="what to load")
    args = parser.parse_args(argv)
    if os.getloadavg()[0] > 1:
        print("others use this machine: their load slows torch's threads more than ours")
    checkpoint = open_checkpoint(args.target)
    target = from_checkpoint(checkpoint)
    plain = Decoder(target)
    prompt = plain.encode([[{"role": "user", "content": args.prompt}]])[0]
    comparison = compare(Decoder(target, NGram(4)), prompt, max_new_tokens=2 * NUM_TOKENS, seed=0)
    kept = [
        show("a pass over 5 positions over one", comparison.costs.pass_cost, most=1.6),
        show("n-gram over plain, tokens/s", comparison.ratio, least=1.0),
        show("4,096 slots over 256, 64 used", with_unused_slots(target, None), most=1.1),
        show("the same for a tree of 12 nodes", with_unused_slots(target, TREE), most=1.1),
        # Last, since torch's threads stay awake for a while after each call.
        show("plain over transformers, tokens/s", over_peer(plain, checkpoint, prompt), least=2.0),
        equal(comparison),
    ]
    print(f"n-gram and plain tokens {'equal' if kept[-1] else 'DIFFER'}")
    return 0 if all(kept) else 1


def over_peer(plain: Decoder, checkpoint: Any, prompt: list[int]) -> float:
    """Tokens per second of plain decoding over those of transformers, prefill included.

    In turns, never at once: each has threads of its own, as many as there are cores.
    """
    peer = load_peer("transformers", checkpoint, num_threads=os.cpu_count() or 1)
    theirs, ours = interleaved_medians(
        [
            lambda: peer.generate(prompt, NUM_TOKENS, None),
            lambda: plain.generate(prompt, max_new_tokens=NUM_TOKENS, stop_token_ids=[]),
        ]
    )
    return theirs / ours


def with_unused_slots(target: Any, drafter: Any) -> float:
    """Time of rounds in a cache of 4,096 slots of which 64 are used, over one of 256 slots."""
    decoder = Decoder(target, drafter)
    call = decoder.prepare([[1, 2] * (USED_SLOTS // 2)], max_new_tokens=16, stop_token_ids=[])
    requests = [padded(call, slots).request for slots in (SLOTS, MORE_SLOTS)]

    def run(asked: Request) -> None:
        jax.block_until_ready(compiled.generate(call.program, asked, chunk=decoder.prefill_chunk))

    few, many = interleaved_medians([partial(run, asked) for asked in requests], repeats=5)
    return many / few


def equal(comparison: Comparison) -> bool:
    """Whether speculation changed no token."""
    return comparison.first_difference is None


def show(name: str, value: float, *, least: float = 0.0, most: float = float("inf")) -> bool:
    """Print a ratio, its bound, and whether it keeps it; say so."""
    bound = f">= {least:.2f}" if least else f"<= {most:.2f}"
    kept = least <= value <= most
    print(f"{name:36} {value:6.2f}   target {bound}   {'met' if kept else 'MISSED'}", flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(main())
