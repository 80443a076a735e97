"""Rotary position embedding (Su et al. 2021) and the ways in which contexts are stretched.

Frequencies are computed as ``transformers.modeling_rope_utils`` computes them; channel i turns
with channel i + dim / 2, as in the llama checkpoints of the Hub.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.nn import wide

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")

_OPTIONAL = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate")


@dataclasses.dataclass(frozen=True)
class Rope:
    """How positions become angles. ``original_max_length`` is the length before stretching."""

    dim: int
    theta: float = 10_000.0
    scaling: str = "default"
    factor: float = 1.0
    original_max_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self):
        if self.scaling not in SCALINGS:
            raise ValueError(
                f"rope_type {self.scaling!r} is not supported; supported are {', '.join(SCALINGS)}"
            )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], dim: int) -> Rope:
        """Read ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``.

        Raises:
            ValueError: an unknown rope_type, or a scaling without what it needs.
        """
        given = config.get("rope_parameters") or config.get("rope_scaling") or {}
        scaling = given.get("rope_type", given.get("type", "default"))
        theta = float(given.get("rope_theta") or config.get("rope_theta") or cls.theta)
        part = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        rope = cls(int(dim * part), theta, scaling)
        if scaling == "default":
            return rope
        longest = original = config.get("max_position_embeddings")
        if scaling != "dynamic":  # which always starts from the model's own length
            name = "original_max_position_embeddings"
            original = config.get(name) or given.get(name) or longest
        factor = given.get("factor")
        if factor is None and scaling in ("yarn", "longrope") and longest and original:
            factor = longest / original
        if not factor or not original:
            raise ValueError(
                f"rope_type {scaling!r} needs 'factor', and 'max_position_embeddings' beside it"
            )
        optional = {name: given[name] for name in _OPTIONAL if given.get(name) is not None}
        if scaling == "yarn":
            optional["attention_factor"] = _attention_factor(given, factor)
        if scaling == "longrope":
            optional |= _longrope_factors(given, factor, original, rope.dim // 2)
        return dataclasses.replace(
            rope, factor=float(factor), original_max_length=int(original), **optional
        )


def rotation(
    rope: Rope, positions: Int[Array, "B T"]
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Cosine and sine of every position's angles, R = dim / 2, in float32."""
    at = positions.astype(jnp.float32)[..., None]
    if rope.scaling == "dynamic":
        angles = at * _dynamic_frequencies(rope, at)
    elif rope.scaling == "longrope":
        angles = at * _longrope_frequencies(rope, at)
    else:
        angles = at * frequencies(rope)
    return jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor


def rotate(
    x: Float[Array, "B T H D"], cos: Float[Array, "B T R"], sin: Float[Array, "B T R"]
) -> Float[Array, "B T H D"]:
    """Turn channel i with channel i + R by the position's angle; channels from 2R on stay."""
    half = cos.shape[-1]
    cos, sin = (y.astype(wide(x.dtype))[:, :, None] for y in (cos, sin))
    first, second = (y.astype(cos.dtype) for y in (x[..., :half], x[..., half : 2 * half]))
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), x[..., 2 * half :]], axis=-1)


def frequencies(rope: Rope) -> np.ndarray:
    """Radians a position of each of the dim / 2 pairs; for dynamic, those of short contexts."""
    plain = rope.theta ** -(np.arange(0, rope.dim, 2, dtype=np.float32) / rope.dim)
    match rope.scaling:
        case "linear":
            plain = plain / rope.factor
        case "llama3":
            plain = _llama3_frequencies(rope, plain)
        case "yarn":
            plain = _yarn_frequencies(rope, plain)
    return plain.astype(np.float32)


def _dynamic_frequencies(rope: Rope, at: Float[Array, "B T 1"]) -> Float[Array, "B T R"]:
    """The base grows with the position once it is beyond the model's own length (NTK-aware).

    Every position counts itself the newest, as it is in decoding token by token: a row's past
    then never changes. transformers gives a whole prefill the base of its last position.
    """
    length = jnp.maximum(at + 1.0, float(rope.original_max_length))
    stretch = rope.factor * length / rope.original_max_length - (rope.factor - 1.0)
    base = rope.theta * stretch ** (rope.dim / (rope.dim - 2))
    return base ** -(np.arange(0, rope.dim, 2, dtype=np.float32) / rope.dim)


def _longrope_frequencies(rope: Rope, at: Float[Array, "B T 1"]) -> Float[Array, "B T R"]:
    """A table for positions within the model's own length, another beyond (Ding et al. 2024).

    As with ``dynamic``, every position counts itself the newest.
    """
    plain = frequencies(rope)
    short, long = (plain / np.asarray(x, np.float32) for x in (rope.short_factor, rope.long_factor))
    return jnp.where(at + 1.0 > float(rope.original_max_length), long, short)


def _llama3_frequencies(rope: Rope, plain: np.ndarray) -> np.ndarray:
    """Slow pairs are divided by the factor, fast ones kept, those between blended (Llama 3.1)."""
    turns = rope.original_max_length * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * plain / rope.factor + kept * plain


def _yarn_frequencies(rope: Rope, plain: np.ndarray) -> np.ndarray:
    """Pairs that turn often are kept, those that seldom do divided (Peng et al. 2023, 3.2)."""

    def pair(turns: float) -> float:
        return (
            rope.dim
            * math.log(rope.original_max_length / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low if high != low else 0.001
    divided = np.clip((np.arange(rope.dim // 2, dtype=np.float32) - low) / width, 0.0, 1.0)
    return plain / rope.factor * divided + plain * (1 - divided)


def _attention_factor(given: Mapping[str, Any], factor: float) -> float:
    """What yarn multiplies cosine and sine with, so that attention keeps its temperature."""

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    over, under = given.get("mscale"), given.get("mscale_all_dim")
    return growth(over) / growth(under) if over and under else growth(1.0)


def _longrope_factors(
    given: Mapping[str, Any], factor: float, original: int, num_pairs: int
) -> dict[str, Any]:
    """Both tables of divisors, and what keeps attention's temperature."""
    tables = {name: tuple(given.get(name) or ()) for name in ("short_factor", "long_factor")}
    for name, table in tables.items():
        if len(table) != num_pairs:
            raise ValueError(f"rope_type 'longrope' needs {num_pairs} numbers in {name!r}")
    scale = given.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return tables | {"attention_factor": float(scale)}
