"""Where a draft ends: rules that are asked before each token is drawn, and never see it."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class Confidence:
    """End a draft where the likeliest next token is less likely than ``least``.

    >>> Confidence(0.6).stops(jnp.array([[[0.5, 0.5], [0.9, 0.1]]]), jnp.zeros((1, 2), int))
    Array([[ True, False]], dtype=bool)
    """

    least: float | Float[Array, ""] = 0.4

    def stops(self, q: Float[Array, "B F V"], depth: Int[Array, "B F"]) -> Bool[Array, "B F"]:
        """Compare the largest probability with the threshold."""
        return q.max(-1) < jnp.asarray(self.least, q.dtype)


@struct.dataclass
class Entropy:
    """End a draft where 1 - sqrt(scale H(q)), a lower bound of its acceptance, is below ``least``.

    H in nats. Agrawal et al. 2024 (AdaEDL, arXiv 2410.18351), eq. 5.

    >>> Entropy(0.3, 0.5).stops(jnp.array([[[0.5, 0.5], [0.9, 0.1]]]), jnp.zeros((1, 2), int))
    Array([[False, False]], dtype=bool)
    >>> Entropy(0.5, 0.5).stops(jnp.array([[[0.5, 0.5], [0.9, 0.1]]]), jnp.zeros((1, 2), int))
    Array([[ True, False]], dtype=bool)
    """

    least: float | Float[Array, ""] = 0.3
    scale: float | Float[Array, ""] = 0.3

    def stops(self, q: Float[Array, "B F V"], depth: Int[Array, "B F"]) -> Bool[Array, "B F"]:
        """Bound the acceptance of what is drawn from ``q``, whatever the target says."""
        entropy = -jnp.where(q > 0, q * jnp.log(jnp.where(q > 0, q, 1)), 0).sum(-1)
        bound = 1 - jnp.sqrt(jnp.asarray(self.scale, q.dtype) * entropy)
        return bound < jnp.asarray(self.least, q.dtype)
