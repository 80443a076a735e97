"""``flax.nnx`` modules as targets: split once, merged again inside the trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from specjax.adapters.build import adapt
from specjax.adapters.cached import Cached
from specjax.adapters.stateless import Stateless
from specjax.protocols import Tokenizer


@dataclasses.dataclass(frozen=True)
class Merged:
    """A module without its weights; calling it puts them back into a copy that nobody keeps."""

    graphdef: nnx.GraphDef
    structure: Any

    def __call__(self, weights: tuple[Any, ...], *arguments: Any) -> Any:
        state = jax.tree.unflatten(self.structure, weights)
        return nnx.merge(self.graphdef, state)(*arguments)


def target(
    module: nnx.Module,
    *,
    vocab_size: int,
    max_length: int | None = None,
    tokenizer: Tokenizer | None = None,
    cache: Sequence[Any] | None = None,
) -> Cached | Stateless:
    """Make a target of an nnx module, in evaluation mode; the module itself stays as it is.

    Its variables become the target's leaves, read now: after training, call ``target`` again,
    which is no retrace.

    Args:
        module: called as ``module(tokens)``, or as ``module(tokens, positions, mask, cache)``
            where ``cache`` is given; see ``specjax.adapters``.
        vocab_size: the size V of its logits.
        max_length: the longest sequence it can read, None where there is no such thing.
        tokenizer: for text prompts.
        cache: for each layer a tuple of what it keeps for one slot, as ``jax.ShapeDtypeStruct``s;
            None for a module that keeps nothing and reads the context anew each pass.

    Example:
        >>> class Bigram(nnx.Module):
        ...     def __init__(self, vocab_size, rngs):
        ...         self.table = nnx.Embed(vocab_size, vocab_size, rngs=rngs)
        ...
        ...     def __call__(self, tokens):
        ...         return self.table(tokens)
        >>> model = target(Bigram(7, nnx.Rngs(0)), vocab_size=7)
        >>> import specjax
        >>> specjax.Decoder(model).score([1, 2], [3])[0] < 0
        True

    Raises:
        ValueError: the module breaks the contract; what and where.
    """
    if not isinstance(module, nnx.Module):
        raise ValueError(
            f"module: must be a flax.nnx.Module, got {type(module).__name__}; linen modules go to "
            "specjax.adapters.linen.target"
        )
    copy = nnx.merge(*nnx.split(module))  # eval() changes a module in place
    copy.eval()
    graphdef, state = nnx.split(copy)
    weights, structure = jax.tree.flatten(state)
    return adapt(
        module,
        Merged(graphdef, structure),
        tuple(weights),
        vocab_size=vocab_size,
        max_length=max_length,
        tokenizer=tokenizer,
        cache=cache,
    )
