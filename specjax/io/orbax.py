"""Weights by path as Orbax keeps them: each device reads and writes only what it holds."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from specjax.io.files import read_json
from specjax.io.tokenizer import Tokenizer
from specjax.models import Config, Weights, eight_bits, kv_copies, layers
from specjax.models.layers import Parameter, pack, parameters
from specjax.models.weights import Shardings, place

WEIGHTS = "orbax"
"""The folder of the weights, beside config.json and the tokenizer's files."""

CHUNK_BYTES = 2**24
"""What is read at least: small, so that a device that wants a slice reads little else."""


def save_leaves(leaves: Mapping[str, Array], folder: Path) -> None:
    """Write weights by their paths, each slice once, into a subfolder of ``folder``.

    Raises:
        OSError: the folder is full or forbidden.
    """
    import orbax.checkpoint as ocp  # it takes long to import

    # Bounds the copies on the host; a limit must be larger than any one array.
    largest = math.ceil(max(leaf.nbytes for leaf in leaves.values()) / 1e9)
    handler = ocp.PyTreeCheckpointHandler(save_device_host_concurrent_gb=largest + 1)
    how = ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES)
    with _quiet(), ocp.Checkpointer(handler) as checkpointer:
        args = ocp.args.PyTreeSave(dict(leaves), save_args=dict.fromkeys(leaves, how))
        checkpointer.save(folder / WEIGHTS, args=args)


class OrbaxCheckpoint:
    """A folder that ``specjax.save`` wrote with ``format="orbax"``.

    Its tensors have the paths, shapes and orientation of ``models.layers.parameters``.
    """

    def __init__(self, folder: str | Path) -> None:
        import orbax.checkpoint as ocp

        self.folder = Path(folder).absolute()
        self.config = read_json(self.folder / "config.json")
        self._checkpointer = ocp.PyTreeCheckpointer()
        try:
            stored = self._checkpointer.metadata(self.folder / WEIGHTS).item_metadata
        except (ValueError, OSError) as error:
            raise _corrupt(self.folder, error) from error
        if stored is None:
            raise _corrupt(self.folder, "no metadata")
        self._stored: Mapping[str, Any] = dict(stored)

    def names(self) -> Iterable[str]:
        """Return the paths of all weights."""
        return self._stored.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one weight without reading it."""
        return tuple(self._stored[name].shape)

    def dtype(self, name: str) -> jnp.dtype:
        """Return the type that one weight is stored in."""
        return jnp.dtype(self._stored[name].dtype)

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer from tokenizer.json, or return None where there is none."""
        if not (self.folder / "tokenizer.json").exists():
            return None
        return Tokenizer.from_folder(self.folder)

    def restore(
        self,
        config: Config,
        dtype: DTypeLike,
        *,
        shardings: Shardings | None = None,
        quantized: bool = False,
        watch: Callable[[Iterable[str]], Iterable[str]] = iter,
    ) -> Weights:
        """Read all weights straight onto their devices; arguments as in ``models.assemble``.

        What is stored in int8 stays so.

        Raises:
            ValueError: a weight is missing, unknown, or of another shape.
        """
        wanted = self._check(dataclasses.replace(config, kv_copies=1))
        read: dict[str, Array] = {}
        leaves: dict[str, Array] = {}
        for path in watch(wanted):
            if path not in read:
                layer = {p: x for p, x in wanted.items() if _layer(p) == _layer(path)}
                read = self._read(config, layer, dtype, shardings)
            leaf = self._copied(config, path, read.pop(path), wanted[path], shardings)
            if quantized and layers.is_quantizable(path):
                leaves |= _quantized(path, wanted[path], leaf, shardings)
            else:
                leaves[path] = leaf
        return pack(leaves)

    def _copied(
        self,
        config: Config,
        path: str,
        leaf: Array,
        parameter: Parameter,
        shardings: Shardings | None,
    ) -> Array:
        """A weight as it is stored, with the copies of key heads that ``config`` wants."""
        if shardings is None or not kv_copies.is_copied(config, path):
            return leaf
        leaf = kv_copies.with_copies(config, path, leaf)
        return jax.device_put(leaf, shardings(Parameter(leaf.shape, parameter.axes)))

    def _read(
        self,
        config: Config,
        wanted: Mapping[str, Parameter],
        dtype: DTypeLike,
        shardings: Shardings | None,
    ) -> dict[str, Array]:
        """Read some weights together: every call takes the whole of the metadata."""
        import orbax.checkpoint as ocp

        def layout(path: str, parameter: Parameter):
            if shardings is None:
                return jnp.zeros(()).sharding
            if kv_copies.is_copied(config, path):  # no slice of what is stored is a device's own
                return shardings(Parameter(parameter.shape, (None,) * len(parameter.shape)))
            return shardings(parameter)

        abstract = {
            path: jax.ShapeDtypeStruct(
                parameter.shape,
                self.dtype(path) if self._is_int8(path) else dtype,
                sharding=layout(path, parameter),
            )
            for path, parameter in wanted.items()
        }
        how = ocp.checkpoint_utils.construct_restore_args(abstract)
        args = ocp.args.PyTreeRestore(abstract, restore_args=how, partial_restore=True)
        try:
            with _quiet():
                return self._checkpointer.restore(self.folder / WEIGHTS, args=args)
        except (ValueError, OSError) as error:
            raise _corrupt(self.folder, error) from error

    def _is_int8(self, path: str) -> bool:
        """Whether it belongs to a linear layer in eight bits."""
        weight = re.sub(r"\.scale$", ".weight", path)
        return weight.endswith(".weight") and weight in self._stored

    def _check(self, config: Config) -> dict[str, Parameter]:
        """Every weight that is stored, if they are those that the configuration implies."""
        wanted: dict[str, Parameter] = {}
        for path, parameter in parameters(config).items():
            eight_bits = layers.quantized(path, parameter) if layers.is_quantizable(path) else {}
            found = any(name in self._stored for name in eight_bits)
            wanted |= eight_bits if found else {path: parameter}
        wrong = [
            f"{p!r} of shape {x.shape} is missing"
            for p, x in wanted.items()
            if p not in self._stored
        ]
        wrong += [
            f"{p!r} of shape {self.shape(p)} has no place in the model"
            for p in self._stored
            if p not in wanted
        ]
        wrong += [
            f"{p!r} has shape {self.shape(p)}, wanted is {x.shape}"
            for p, x in wanted.items()
            if p in self._stored and self.shape(p) != x.shape
        ]
        if wrong:
            more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
            raise ValueError(
                f"{self.folder / WEIGHTS} does not fit config.json: {'; '.join(wrong[:3])}{more}"
            )
        return wanted


def _layer(path: str) -> str:
    """The layer that a weight belongs to, nothing for those of none."""
    return ".".join(path.split(".")[:2]) if path.startswith("layers.") else ""


def _quantized(
    path: str, kernel: Parameter, leaf: Array, shardings: Shardings | None
) -> dict[str, Array]:
    """A kernel in eight bits, weight and scale, laid out as those are."""
    laid_out = layers.quantized(path, kernel)
    return {
        name: place(
            part.__getitem__, part.shape, None if shardings is None else shardings(laid_out[name])
        )
        for name, part in eight_bits.split(path, leaf).items()
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax from writing the traceback of every thread: what it raises is enough."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _corrupt(folder: Path, error: object) -> ValueError:
    return ValueError(f"{folder / WEIGHTS} is incomplete or corrupt ({error}); copy it again")
