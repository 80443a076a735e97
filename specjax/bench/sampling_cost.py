"""What sampling adds to a target pass: ``python -m specjax.bench.sampling_cost``.

Random weights of two real sizes; at temperature 1, batch 1, K = 4. Expect a few percent each, and
15 at most.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import compiled, loop
from specjax.api import Decoder
from specjax.bench.costs import NUM, target_passes
from specjax.bench.timing import interleaved_medians
from specjax.drafters import NGram
from specjax.models import Config, DecoderLM, LayerKind, random_weights
from specjax.models.rope import Rope
from specjax.program import Program
from specjax.settings import Settings
from specjax.types import Draft, State

MOST = 0.15
SIZES = {
    "SmolLM2-135M's, 49,152 tokens": Config(
        49_152, 576, 1536, 9, 3, 64, (LayerKind(Rope(64)),) * 30, max_length=512, tied=True
    ),
    "Gemma-3-270M's, 262,144 tokens": Config(
        262_144, 640, 2048, 4, 1, 256, (LayerKind(Rope(256)),) * 18, max_length=512, tied=True
    ),
}
LAWS: dict[str, Settings] = {
    "temperature": {"temperature": 1.0},
    "and top-k 50, top-p 0.95": {"temperature": 1.0, "top_k": 50, "top_p": 0.95},
    "and penalties": {"temperature": 1.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}


@partial(jax.jit, static_argnames="num")
def sample(
    program: Program, state: State, draft: Draft, logits: Float[Array, "B M V"], *, num: int
) -> Int[Array, " B"]:
    """Do all that a round does with logits ``num`` times: noise, laws, verdict, draw."""

    def step(i, total):
        context = dataclasses.replace(state.context, length=state.context.length + i)
        at = dataclasses.replace(state, context=context)
        _, p, coins = loop.judge(program, at, draft, logits + total[:, None, None], None)
        verdict = program.verifier.accept(draft, p, coins)
        emitted, count = loop.emit(program, at, draft, verdict)
        # What the next one reads depends on this one, or all would be one.
        return jnp.minimum(emitted[:, 0] + count, 0).astype(logits.dtype)

    zero = jnp.zeros(logits.shape[0], logits.dtype)
    return jax.lax.fori_loop(0, num, step, zero).astype(jnp.int32)


def sampling_share(target: Any, verifier: str, settings: Settings, repeats: int = 5) -> float:
    """Time of sampling in a round over that of the round's target pass."""
    decoder = Decoder(target, NGram(4), verifier=verifier)
    asked: Settings = {"max_new_tokens": 64, **settings}
    call = decoder.prepare([[1, 2, 3, 1, 2]], **asked)
    program = call.program
    state = compiled.begin(program, call.request, chunk=decoder.prefill_chunk)
    draft = loop.propose(program, state)[0].draft
    width = program.drafter.depth + 1
    logits = 3 * jax.random.normal(jax.random.key(1), (1, width, target.vocab_size), jnp.float32)
    passed = target, state.context, state.cache
    passes, samples = interleaved_medians(
        [
            lambda: target_passes(*passed, width=width).block_until_ready(),
            lambda: sample(program, state, draft, logits, num=NUM).block_until_ready(),
        ],
        repeats,
    )
    return samples / passes


def main() -> int:
    """Print every share; 1 if plain sampling costs more than it may."""
    kept = True
    for name, config in SIZES.items():
        target = DecoderLM(random_weights(config, jax.random.key(0)), config)
        for law, settings in LAWS.items():
            for verifier in ("coupled", "block"):
                share = sampling_share(target, verifier, settings)
                bounded = law == "temperature"
                kept &= share <= MOST or not bounded
                bound = f"   target <= {MOST:.0%}" if bounded else ""
                print(f"{name:32} {law:26} {verifier:8} {share:6.1%}{bound}", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
