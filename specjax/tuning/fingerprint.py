"""What a result of tuning depends on, as a digest: machine, models, drafters, prompts, settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

_FEW = 8
"""Numbers of each weight that tell two models of the same shape apart."""


def fingerprint(**parts: Any) -> str:
    """A digest of named values, the same in every process.

    >>> fingerprint(a=(1, 2)) == fingerprint(a=[1, 2]), fingerprint(a=1) == fingerprint(a=2)
    (True, False)
    """
    text = json.dumps(described(parts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def machine(target: Any) -> dict[str, Any]:
    """The devices that a target lies on, and what runs on them."""
    held = next((x for x in jax.tree.leaves(target) if isinstance(x, jax.Array)), None)
    devices = list(held.sharding.device_set) if held is not None else jax.devices()[:1]
    return {
        "jax": jax.__version__,
        "devices": sorted(f"{device.platform} {device.device_kind}" for device in devices),
        "host": [platform.machine(), os.cpu_count()],
    }


def described(value: Any) -> Any:
    """A value as JSON: structure, static fields, and shape, type and a few numbers of arrays.

    Of what is none of these its type alone, so that nothing depends on where it lies in memory.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(described(item), sort_keys=True) for item in value)
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, Mesh):
        return dict(value.shape)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return [type(value).__qualname__, described(fields)]
    if isinstance(value, np.dtype):
        return value.name
    named = getattr(value, "__qualname__", None) or type(value).__qualname__
    leaves = [leaf for leaf in jax.tree.leaves(value) if leaf is not value]
    return [named, described(leaves)] if leaves else named


def _array(array: Any) -> list[Any]:
    cut = array.sharding.spec if isinstance(getattr(array, "sharding", None), NamedSharding) else ""
    return [str(array.dtype), list(array.shape), str(cut), _few(array)]


def _few(array: Any) -> list[float]:
    """The first numbers of an array; none where they are not at hand."""
    elsewhere = isinstance(array, jax.Array) and not array.is_fully_addressable
    if elsewhere or array.size == 0 or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return []
    line = array[(0,) * (array.ndim - 1)][:_FEW] if array.ndim else array
    return np.asarray(line).astype(np.float64).reshape(-1).tolist()
