"""How a GGUF file says that rotary frequencies are stretched, as Hugging Face would say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.io.gguf_keys import Keys

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that divide frequencies: no weights, but a part of the configuration."""

_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_LENGTH = 1.0, 4.0, 8192
_YARN_OWN = ("attn_factor", "yarn_ext_factor", "yarn_attn_factor", "yarn_log_multiplier")


def rope_scaling(
    keys: Keys, factors: Mapping[str, np.ndarray], theta: float
) -> dict[str, Any] | None:
    """Return ``rope_scaling``, or None where nothing is stretched.

    Args:
        keys: the file's metadata.
        factors: those of ``FACTORS`` that it holds.
        theta: the base of the frequencies.

    Raises:
        ValueError: the scaling is not supported, or is none that Hugging Face has.
    """
    freqs, long, short = (factors.get(name) for name in FACTORS)
    kind = keys.text("rope.scaling.type", "linear")  # llama.cpp's default, with a factor of 1
    if freqs is not None:
        return _llama3(keys, freqs, theta)
    if long is not None or short is not None:
        return _longrope(keys, long, short)
    if kind == "none":
        return None
    if kind == "linear":
        factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
        return {"rope_type": "linear", "factor": factor} if factor != 1 else None
    if kind == "yarn":
        return _yarn(keys)
    raise keys.error(f"unsupported rope scaling {kind!r}; supported are none, linear, yarn")


def _llama3(keys: Keys, factors: np.ndarray, theta: float) -> dict[str, Any]:
    """Recover Llama 3's rope scaling from the divisors it was stored as.

    Only ``factor`` differs between its models, and it is the largest divisor; the table is
    computed from it again, so that another scheme is refused and not guessed at.
    """
    factor = float(factors.max())
    with np.errstate(all="ignore"):  # a corrupt table may hold anything
        wavelength = 2 * np.pi * theta ** (np.arange(factors.size) / factors.size)
        smooth = (_LLAMA3_LENGTH / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
        smooth = np.clip(smooth, 0.0, 1.0)
        expected = 1 / ((1 - smooth) / factor + smooth)
        right = np.allclose(factors, expected, rtol=1e-3)
    if not right:
        raise keys.error("unsupported rope scaling: rope_freqs is not that of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_LENGTH,
    }


def _longrope(keys: Keys, long: np.ndarray | None, short: np.ndarray | None) -> dict[str, Any]:
    """Phi-3's two tables; the attention factor is left to be what follows from the lengths."""
    if long is None or short is None:
        raise keys.error(f"of {' and '.join(FACTORS[1:])} only one is there")
    original = keys.whole("rope.scaling.original_context_length")
    stretch = keys.whole("context_length") / original
    implied = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 < original else 1
    if not math.isclose(keys.real("rope.scaling.attn_factor", implied), implied, rel_tol=1e-3):
        raise keys.error("unsupported rope.scaling.attn_factor: not what follows from the lengths")
    return {
        "rope_type": "longrope",
        "long_factor": long.tolist(),
        "short_factor": short.tolist(),
    }


def _yarn(keys: Keys) -> dict[str, Any]:
    if own := [name for name in _YARN_OWN if keys.has(f"rope.scaling.{name}")]:
        raise keys.error(f"unsupported rope scaling 'yarn' with rope.scaling.{own[0]}")
    betas = {
        name: keys.real(f"rope.scaling.yarn_{name}")
        for name in ("beta_fast", "beta_slow")
        if keys.has(f"rope.scaling.yarn_{name}")
    }
    return betas | {
        "rope_type": "yarn",
        "factor": keys.real("rope.scaling.factor"),
        "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
    }
