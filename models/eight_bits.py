"""Kernels in eight bits: as a checkpoint is read, or of a model that is loaded."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specjax import int8
from specjax.models import layers
from specjax.models.layers import Parameter
from specjax.models.table import Index, Reader, bounds

if TYPE_CHECKING:
    from specjax.models.decoder import DecoderLM


def quantize(target: DecoderLM) -> DecoderLM:
    """Keep every kernel but the routers' in eight bits; ``load(..., quantize=)`` does it sooner.

    As a draft model it leaves the law of the output alone; as a target it is another model.

    Raises:
        ValueError: ``target`` is no decoder of ours, or lies on several devices.
    """
    if not hasattr(target, "config"):
        raise ValueError(f"target: must be a model from specjax.load, got {type(target).__name__}")
    leaves: dict[str, Array] = {}
    for path, leaf in layers.unpack(target.weights).items():
        if len(leaf.sharding.device_set) > 1:
            raise ValueError("target: lies on several devices; use load(..., quantize='int8')")
        if layers.is_quantizable(path):
            leaves |= {name: jnp.asarray(part) for name, part in split(path, leaf).items()}
        else:
            leaves[path] = leaf
    return dataclasses.replace(target, weights=layers.pack(leaves))


def split(path: str, kernel: Float[Array, "*E _ _"]) -> dict[str, np.ndarray]:
    """The weight and the scale that stand for a kernel, by their paths, on the host."""
    base = layers.layer_of(path)
    weight, scale = int8.quantize(_out_in(path, np.asarray(kernel, np.float32)))
    return {base + "weight": weight, base + "scale": scale}


def _out_in(path: str, kernel: np.ndarray) -> np.ndarray:
    return kernel.swapaxes(-1, -2) if layers.is_in_out(path) else kernel


def reads(path: str, kernel: Parameter, read: Reader) -> dict[str, tuple[Parameter, Reader]]:
    """Readers of a kernel's weight and scale in eight bits. A channel's scale needs all of it."""

    @cache
    def channels(*outer: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        *rest, outputs = (slice(*x) for x in outer)
        matrix = (slice(None), outputs) if layers.is_in_out(path) else (outputs, slice(None))
        return int8.quantize(_out_in(path, read((*rest, *matrix))))

    def weight(index: Index) -> np.ndarray:
        return channels(*bounds(index[:-1], sizes))[0][..., index[-1]]

    def scale(index: Index) -> np.ndarray:
        return channels(*bounds(index, sizes))[1]

    both = layers.quantized(path, kernel)
    (name, one), (scale_name, scale_one) = both.items()
    sizes = scale_one.shape
    return {name: (one, weight), scale_name: (scale_one, scale)}
