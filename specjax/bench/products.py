"""What products over a few rows cost, by XLA's first choice and by ``specjax.product``.

python -m specjax.bench.products [--rows 2 5 8 16 32]

Kernels of SmolLM2-135M's shapes, more of them than any cache holds, float32. Each figure is the
time over that of plain products over one row, in turns in one run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import product
from specjax.bench.timing import interleaved_medians

SHAPES = {"qkv": (576, 960), "gate": (576, 1536), "down": (1536, 576), "head": (576, 49_152)}
BYTES = 2**26
"""Bytes of kernels of one shape."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a shape and library."""
    parser = argparse.ArgumentParser(description="Products over a few rows, by two libraries.")
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 5, 8, 16, 32])
    rows = parser.parse_args(argv).rows
    print("times over one row".ljust(24), *(f"{n:6}" for n in rows))
    for name, (inputs, outputs) in SHAPES.items():
        num = max(1, BYTES // (4 * inputs * outputs))
        kernels = [jnp.ones((inputs, outputs), jnp.float32) + i for i in range(num)]
        ours = product.wide_matmul if name == "head" else product.matmul
        ways: dict[str, Callable[..., Array]] = {"XLA's choice": jnp.matmul, "ours": ours}
        calls = [_call(jnp.matmul, 1, kernels)]
        calls += [_call(way, n, kernels) for way in ways.values() for n in rows]
        one, *seconds = interleaved_medians(calls, repeats=5)
        for index, way in enumerate(ways):
            part = seconds[index * len(rows) :][: len(rows)]
            print(f"{name:10} {way:13}", *(f"{s / one:6.2f}" for s in part), flush=True)
    return 0


def _call(matmul: Callable[..., Array], rows: int, kernels: list[Array]) -> Callable[[], Any]:
    x = jnp.ones((rows, kernels[0].shape[0]), jnp.float32)
    run = partial(_products, matmul)
    return lambda: run(x, kernels).block_until_ready()


@partial(jax.jit, static_argnums=0)
def _products(
    matmul: Callable[..., Array], x: Float[Array, "N I"], kernels: list[Float[Array, "I O"]]
) -> Float[Array, "N I"]:
    """Four rounds through all kernels, each waiting for the one before."""

    def step(_, x):
        for kernel in kernels:
            x = x + 1e-9 * matmul(x, kernel).max(-1, keepdims=True)
        return x

    return jax.lax.fori_loop(0, 4, step, x)


if __name__ == "__main__":
    sys.exit(main())
