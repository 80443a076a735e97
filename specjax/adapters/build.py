"""From a module to its target, after trying its shapes without computing anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax.adapters.cached import Cached, Entries
from specjax.adapters.stateless import Stateless
from specjax.protocols import Tokenizer


def adapt(
    module: Callable[..., Any],
    call: Callable[..., Any],
    weights: Any,
    *,
    vocab_size: int,
    max_length: int | None,
    tokenizer: Tokenizer | None,
    cache: Sequence[Any] | None,
) -> Cached | Stateless:
    """Make ``call(weights, ...)``, which runs ``module``, a target; ``target`` has the arguments.

    Raises:
        ValueError: the module is not called or does not answer as the contract says.
    """
    for name, value in (("vocab_size", vocab_size), ("max_length", max_length or 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: must be an int of at least 1, got {value!r}")
    names = ("tokens",) if cache is None else ("tokens", "positions", "mask", "cache")
    _check_signature(module, names)
    try:
        hash(call)
    except TypeError as error:
        raise ValueError(
            f"module: its configuration must be hashable, but {error}; use tuples instead of "
            "lists, and no arrays outside its parameters"
        ) from error
    shared = {
        "weights": weights,
        "call": call,
        "vocab_size": vocab_size,
        "max_length": max_length,
        "tokenizer": tokenizer,
    }
    target = Stateless(**shared) if cache is None else Cached(entries=Entries.of(cache), **shared)
    jax.eval_shape(_one_pass, target)
    return target


def _check_signature(module: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Refuse a module that cannot be called with these arguments in this order."""
    try:
        inspect.signature(module).bind(*names)
    except TypeError as error:
        kind = "without a cache" if len(names) == 1 else "with a cache"
        raise ValueError(
            f"module: one {kind} is called as module({', '.join(names)}), but {error}; wrap it in "
            "a module that is, with cache=None for one that keeps none"
        ) from error


def _one_pass(target: Cached | Stateless) -> Any:
    """Two rows of three tokens: enough to tell rows, tokens, slots and vocabulary apart."""
    num = min(3, target.max_length or 3)
    tokens, start = jnp.zeros((2, num), jnp.int32), jnp.zeros(2, jnp.int32)
    cache = target.init_cache(2, num + 2)
    return target.extend(tokens, start, cache, count=start + num)
