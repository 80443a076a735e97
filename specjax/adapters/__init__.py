"""Models of flax as targets: ``adapters.nnx.target(module, ...)``, ``adapters.linen.target(...)``.

A module is called in one of two ways, in which B rows, T tokens and S slots are as elsewhere:

- without a cache, ``module(tokens i32[B, L]) -> logits f[B, L, V]``; see ``adapters.stateless``;
- with one, ``module(tokens i32[B, T], positions i32[B, T], mask bool[B, T, S], cache) -> logits
  f[B, T, V]``; see ``adapters.cached``.
"""

from specjax.adapters import linen, nnx

__all__ = ["linen", "nnx"]
