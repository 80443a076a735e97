"""Shapes are checked while the tests run, and dtypes never promote silently."""

from collections.abc import Callable
from typing import Any

import jax
from beartype import beartype
from beartype.door import is_bearable
from beartype.roar import BeartypeDecorHintException
from jaxtyping import install_import_hook


def check_functions(function: Callable) -> Callable:
    """Apply beartype to a function, leaving out what cannot be checked.

    ``__init__`` is one such thing: jax rebuilds pytrees with any leaf (None, object(), a
    tracer without the row axis), so a field's shape is a promise to functions alone.
    """
    if function.__name__ == "__init__":
        return function
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint if _is_checkable(hint) else Any for name, hint in hints.items()
    }
    return beartype(function)


def _is_checkable(hint: Any) -> bool:
    """Whether beartype can check it: not ``Self``, nor a protocol without runtime_checkable."""
    try:
        is_bearable(None, hint)
    except BeartypeDecorHintException:
        return False
    return True


install_import_hook("specjax", f"{__name__}.{check_functions.__name__}")
jax.config.update("jax_numpy_dtype_promotion", "strict")
