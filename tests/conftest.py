"""Shapes are checked while the tests run, and dtypes never promote silently."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

# One module for LLVM instead of 32: programs this small compile in a third of the time. The CPU
# counts as eight devices, of which all but the tests of meshes use the first alone. libtpu is there
# to compile with: nobody is to look for a TPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_parallel_codegen_split_count=1 --xla_force_host_platform_device_count=8"
)

import jax
import pytest
from beartype import BeartypeConf, beartype
from beartype.door import is_bearable
from beartype.roar import BeartypeDecorHintException
from jaxtyping import install_import_hook

NUMBERS = BeartypeConf(is_pep484_tower=True)
"""An int is a float, as it is to a type checker."""

USER_FACING = (
    *("specjax.adapters.build", "specjax.adapters.linen", "specjax.adapters.nnx"),
    *("specjax.api", "specjax.call", "specjax.check.pair", "specjax.configure", "specjax.prompts"),
    *("specjax.io.load", "specjax.request", "specjax.rng", "specjax.settings"),
)
"""These check what a user gives them, and say more than a type checker would."""


def check_functions(function: Callable) -> Callable:
    """Apply beartype to a function, leaving out what cannot be checked.

    ``__init__`` is one such thing: jax rebuilds pytrees with any leaf (None, object(), a
    tracer without the row axis), so a field's shape is a promise to functions alone.
    """
    if function.__name__ == "__init__" or function.__module__ in USER_FACING:
        return function
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint if _is_checkable(hint) else Any for name, hint in hints.items()
    }
    return beartype(conf=NUMBERS)(function)


def _is_checkable(hint: Any) -> bool:
    """Whether beartype can check it: not ``Self``, nor a protocol without runtime_checkable."""
    try:
        is_bearable(None, hint)
    except BeartypeDecorHintException:
        return False
    return True


install_import_hook("specjax", f"{__name__}.{check_functions.__name__}")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Drop what a file has compiled: a process may hold only so many programs."""
    yield
    jax.clear_caches()
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--prompts", help="a JSONL file of prompts (question_id, category, turns) for slow tests"
    )
