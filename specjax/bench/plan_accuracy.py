"""How well ``specjax plan`` predicts times: against measured ones on this machine, in one run.

python -m specjax.bench.plan_accuracy

The machine's bandwidth and arithmetic are measured in turns with the passes: those of a chain of
products whose matrices together are as large as the weights. A CPU's products of few rows reach
less arithmetic than those of many, so each is measured with the rows that the pass has.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from specjax import compiled
from specjax.api import Decoder
from specjax.bench.costs import NUM, target_passes
from specjax.bench.timing import interleaved_medians
from specjax.models import Config, DecoderLM, LayerKind, random_weights
from specjax.models.layers import parameters
from specjax.models.rope import Rope
from specjax.plan import predict
from specjax.plan.chips import Chip, Machine
from specjax.plan.setup import Setup
from specjax.product import matmul

WITHIN = 0.15
"""How far a prediction may be off, over the measured time."""

CONFIG = Config(
    vocab_size=32_768,
    hidden_size=1024,
    intermediate_size=4096,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    layers=(LayerKind(Rope(64)),) * 8,
    tied=True,
)
"""A model of 155 million weights: 620 MB in float32, far more than a CPU's caches hold."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A pass: seconds predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is off, over the measured time."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        kept = "within" if abs(self.error) <= WITHIN else "NOT within"
        return (
            f"{self.name:36} predicted {self.predicted * 1e3:8.1f} ms   measured "
            f"{self.measured * 1e3:8.1f} ms   {self.error:+6.1%}   {kept} {WITHIN:.0%}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a prediction is off by more than 15 %."""
    parser = argparse.ArgumentParser(description="Predicted against measured times.")
    parser.add_argument("--draft-length", type=int, default=5, help="K of the verifying pass")
    parser.add_argument("--prompt", type=int, default=257, help="tokens")
    parser.add_argument("--chunk", type=int, default=128, help="positions a prefill pass")
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    args = parser.parse_args(argv)
    rows = measure(CONFIG, **vars(args))
    print(*rows, sep="\n")
    return 0 if all(abs(row.error) <= WITHIN for row in rows) else 1


def measure(
    config: Config, *, draft_length: int, prompt: int, chunk: int, repeats: int
) -> list[Row]:
    """Predict and measure a plain step, a verification and a prefill, of one row in float32."""
    widths = (1, draft_length + 1, chunk)
    chains, times = time_all(config, widths, prompt, repeats)
    setups = {
        width: Setup(
            target=config,
            topology=machine,
            draft_length=draft_length,
            context=prompt + draft_length + 1,
            prompt=prompt,
            dtype="float32",
            chunk=chunk,
        )
        for width, machine in machines_of(chains, num_weights(config)).items()
    }
    predicted = (
        *(predict.target_pass(setups[width], width, prompt).seconds for width in widths[:2]),
        predict.prefill(setups[chunk]).seconds,
    )
    names = ("plain step", f"verification, K = {draft_length}", f"prefill of {prompt} tokens")
    return [Row(*row) for row in zip(names, predicted, times, strict=True)]


def time_all(
    config: Config, widths: tuple[int, int, int], prompt: int, repeats: int
) -> tuple[dict[int, float], list[float]]:
    """Seconds of a chain of products for each width; of both passes, and of a whole prefill."""
    chunk = widths[-1]
    target = DecoderLM(random_weights(config, jax.random.key(0)), config)
    decoder = Decoder(target, prefill_chunk=chunk)
    call = decoder.prepare([[1] * prompt], max_new_tokens=widths[1], stop_token_ids=[])
    state = compiled.begin(call.program, call.request, chunk=chunk)
    matrices = matrices_of(config)

    def prefill() -> None:
        jax.block_until_ready(compiled.begin(call.program, call.request, chunk=chunk))

    def passes(width: int) -> None:
        target_passes(target, state.context, state.cache, width=width).block_until_ready()

    # A machine's mood lasts for seconds: each chain is timed right before what it stands for.
    runs = [*(partial(passes, width) for width in widths[:2]), prefill]
    chains = [partial(products, matrices, width, turns_of(width)) for width in widths]
    times = interleaved_medians(
        [f for pair in zip(chains, runs, strict=True) for f in pair], repeats
    )
    each = {w: s / turns_of(w) for w, s in zip(widths, times[::2], strict=True)}
    return each, [times[1] / NUM, times[3] / NUM, times[5]]


def num_weights(config: Config) -> int:
    """Numbers in a chain of products: about as many as the model has weights."""
    inner, outer = config.hidden_size, config.intermediate_size
    total = sum(math.prod(one.shape) for one in parameters(config).values())
    return -(-total // (3 * inner * outer)) * 3 * inner * outer


def turns_of(rows: int) -> int:
    """How many chains of products to run in a dispatch: as many as passes, fewer of long ones."""
    return NUM if rows < 32 else 2


def matrices_of(config: Config) -> list[tuple[Array, Array, Array]]:
    """Matrices, two there and one back, of the sizes that most of the model's have."""
    inner, outer = config.hidden_size, config.intermediate_size
    keys = jax.random.split(jax.random.key(1), num_weights(config) // (3 * inner * outer))

    def matrix(key: Key[Array, ""], rows: int, columns: int) -> Array:
        return jax.random.normal(key, (rows, columns), jnp.float32) * np.float32(rows**-0.5)

    def triple(key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        one, other, back = jax.random.split(key, 3)
        return matrix(one, inner, outer), matrix(other, inner, outer), matrix(back, outer, inner)

    return [triple(key) for key in keys]


@partial(jax.jit, static_argnums=(1, 2))
def _products(
    matrices: list[tuple[Array, Array, Array]], rows: int, turns: int
) -> Float[Array, "N D"]:
    def chain(_, x):
        for one, other, back in matrices:
            x = matmul(matmul(x, one) + matmul(x, other), back)
        return x

    x = jnp.ones((rows, matrices[0][0].shape[0]), jnp.float32)
    return jax.lax.fori_loop(0, turns, chain, x)


def products(matrices: list[tuple[Array, Array, Array]], rows: int, turns: int) -> None:
    """Multiply so many rows by one matrix after the other, and over again."""
    _products(matrices, rows, turns).block_until_ready()


def machines_of(seconds: Mapping[int, float], size: int) -> dict[int, Machine]:
    """This machine as it does products of so many rows, from the seconds of ``size`` weights."""
    bandwidth = 4 * size / seconds[1]
    rates = {rows: 2 * rows * size / taken for rows, taken in seconds.items()}
    print(
        f"bandwidth {bandwidth / 1e9:.1f} GB/s;",
        ", ".join(f"{rate / 1e9:.0f} GFLOP/s at {rows} rows" for rows, rate in rates.items()),
    )
    return {
        rows: Machine(Chip("this machine", math.inf, bandwidth, {"float32": rate}), (1,))
        for rows, rate in rates.items()
    }


if __name__ == "__main__":
    sys.exit(main())
