"""What eight-bit weights change, as a target and as a draft model of the float one.

python -m specjax.bench.int8_effect prompts.jsonl

Each line of the file has ``turns``; the first turn of six of them, spread over the file, is asked,
and the agreement is taken over the text of the file. SmolLM2-135M on two cores: expect a pass over
one position in about 0.6 of the time, argmax equal at 95 % of positions, over 4 tokens a pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import specjax
from specjax import compiled
from specjax.api import Decoder
from specjax.bench.costs import target_passes
from specjax.bench.timing import interleaved_medians
from specjax.drafters import DraftModel

NUM_TOKENS, NUM_POSITIONS, NUM_PROMPTS, DRAFT_LENGTH = 64, 512, 6, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Print sizes, speed, agreement and acceptance."""
    parser = argparse.ArgumentParser(description="What eight-bit weights change.")
    parser.add_argument("prompts", type=Path, help="a JSONL file with turns in each line")
    parser.add_argument("--target", default="smollm2-135m-instruct", help="what to load")
    args = parser.parse_args(argv)
    if os.getloadavg()[0] > 1:
        print("others use this machine: medians of turns, but do run it twice")
    target = specjax.load(args.target)
    eight = specjax.quantize(target)
    turns = [json.loads(line)["turns"] for line in args.prompts.read_text().splitlines()]
    asked = turns[:: max(1, len(turns) // NUM_PROMPTS)][:NUM_PROMPTS]
    prompts = [[{"role": "user", "content": each[0]}] for each in asked]
    show("bytes of all weights", num_bytes(eight) / num_bytes(target))
    show_speed(target, eight, prompts[0])
    # The longest turns, which are prose to be read rather than questions.
    longest = sorted((text for each in turns for text in each), key=len)[::-1]
    show_agreement(target, eight, "\n\n".join(longest[:8]))
    show_acceptance(target, eight, prompts)
    return 0


def show_speed(target: Any, eight: Any, prompt: Any) -> None:
    """Plain decoding, and passes over the newest token and over a whole draft, int8 over float."""
    decoders = [Decoder(model) for model in (target, eight)]
    rows = decoders[0].encode([prompt])
    settings: Any = {"max_new_tokens": NUM_TOKENS, "stop_token_ids": []}
    runs = [partial(each.generate, rows, **settings) for each in decoders]
    theirs, ours = interleaved_medians(runs, repeats=5)
    show("plain decoding, tokens/s", theirs / ours)
    states = []
    for each in decoders:
        call = each.prepare(rows, max_new_tokens=NUM_TOKENS)
        state = compiled.begin(call.program, call.request, chunk=each.prefill_chunk)
        states.append((call.program.target, state.context, state.cache))
    for width in (1, DRAFT_LENGTH + 1):
        passes = [partial(_passes, *state, width=width) for state in states]
        theirs, ours = interleaved_medians(passes, repeats=5)
        show(f"a pass over {width}, time", ours / theirs)


def _passes(target: Any, context: Any, cache: Any, *, width: int) -> None:
    target_passes(target, context, cache, width=width).block_until_ready()


def show_agreement(target: Any, eight: Any, text: str) -> None:
    """How far the laws are apart after each token of a text."""
    tokens = jnp.asarray([target.tokenizer.encode(text)[:NUM_POSITIONS]], jnp.int32)
    p, q = log_law(target, tokens), log_law(eight, tokens)
    distance = (jnp.exp(p) * (p - q)).sum(-1)
    show(
        f"equal argmax of {tokens.shape[1]} positions", float((p.argmax(-1) == q.argmax(-1)).mean())
    )
    show("KL(float, int8), nats a position", float(distance.mean()), digits=4)


@jax.jit
def log_law(target: Any, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """Log-probabilities of what follows each token, at temperature 1."""
    batch, num = tokens.shape
    start = jnp.zeros(batch, jnp.int32)
    cache = target.init_cache(batch, num)
    hidden, _, _ = target.extend(tokens, start, cache, count=start + num)
    return jax.nn.log_softmax(target.unembed(hidden))


def show_acceptance(target: Any, eight: Any, prompts: list[Any]) -> None:
    """Tokens a pass of the float model, drafted by its own eight-bit form."""
    decoder = Decoder(target, DraftModel(eight, draft_length=DRAFT_LENGTH))
    for temperature in (0.0, 1.0):
        result = decoder.generate(
            prompts, max_new_tokens=NUM_TOKENS, temperature=temperature, seed=0
        )
        name = f"as drafter, K = {DRAFT_LENGTH}, T = {temperature:.0f}, tokens a pass"
        show(name, result.metrics.mean_acceptance_length)


def num_bytes(target: Any) -> int:
    """Bytes of all weights."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(target))


def show(name: str, value: float, digits: int = 2) -> None:
    """Print one figure; figures of speed and size are int8 over float."""
    print(f"{name:44} {value:8.{digits}f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
