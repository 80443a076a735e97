"""``flax.linen`` modules as targets: ``module.apply`` on variables that are the leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen
from flax.errors import FlaxError

from specjax.adapters.build import adapt
from specjax.adapters.cached import Cached
from specjax.adapters.stateless import Stateless
from specjax.protocols import Tokenizer


@dataclasses.dataclass(frozen=True)
class Applied:
    """A module, applied to the variables it is given; none of them may change."""

    module: linen.Module

    def __call__(self, variables: Mapping[str, Any], *arguments: Any) -> Any:
        return self.module.apply(variables, *arguments)


def target(
    module: linen.Module,
    variables: Mapping[str, Any],
    *,
    vocab_size: int,
    max_length: int | None = None,
    tokenizer: Tokenizer | None = None,
    cache: Sequence[Any] | None = None,
) -> Cached | Stateless:
    """Make a target of a linen module and its variables.

    New variables of the same shapes are no retrace: ``target.replace(weights=variables)``.

    Args:
        module: called as ``module(tokens)``, or as ``module(tokens, positions, mask, cache)``
            where ``cache`` is given; see ``specjax.adapters``. It gets no random numbers: build it
            with dropout off.
        variables: what ``module.init`` gave, or a checkpoint: all collections that it reads.
        vocab_size: the size V of its logits.
        max_length: the longest sequence it can read, None where there is no such thing.
        tokenizer: for text prompts.
        cache: for each layer a tuple of what it keeps for one slot, as ``jax.ShapeDtypeStruct``s;
            None for a module that keeps nothing and reads the context anew each pass.

    Example:
        >>> import jax, specjax
        >>> module = linen.Embed(7, 7)  # a bigram model: a table of logits
        >>> variables = module.init(jax.random.key(0), jax.numpy.zeros((1, 1), int))
        >>> model = target(module, variables, vocab_size=7)
        >>> specjax.Decoder(model).score([1, 2], [3])[0] < 0
        True

    Raises:
        ValueError: the module breaks the contract, or the variables are not its own.
    """
    if not isinstance(module, linen.Module):
        raise ValueError(
            f"module: must be a flax.linen.Module, got {type(module).__name__}; nnx modules go to "
            "specjax.adapters.nnx.target"
        )
    try:
        return adapt(
            module,
            Applied(module),
            variables,
            vocab_size=vocab_size,
            max_length=max_length,
            tokenizer=tokenizer,
            cache=cache,
        )
    except FlaxError as error:
        raise ValueError(
            f"module: cannot be applied to these variables: {error}; give all that module.init "
            "returns, and a module without dropout (deterministic=True)"
        ) from error
