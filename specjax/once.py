"""Work that is done only where it is needed, without copying what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, Bool

T = TypeVar("T")


def once(condition: Bool[Array, ""], body: Callable[[T], T], carry: T) -> T:
    """``body(carry)`` where ``condition`` holds, else ``carry``.

    A loop of at most one turn: ``lax.cond`` would copy a cache that passes through it.

    >>> import jax.numpy as jnp
    >>> [int(once(jnp.array(c), lambda x: x + 1, jnp.array(5))) for c in (True, False)]
    [6, 5]
    """

    def turn(state):
        return body(state[0]), state[1] & False

    return jax.lax.while_loop(lambda state: state[1], turn, (carry, condition))[0]
