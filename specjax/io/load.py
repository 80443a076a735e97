"""``load``: a model by alias, folder, file or Hub id."""

from __future__ import annotations

import dataclasses
import os
import re
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike
from tqdm.auto import tqdm

from specjax.io.aliases import ALIASES
from specjax.io.checkpoint import Checkpoint
from specjax.io.fetch import fetch
from specjax.io.gguf import GGUFCheckpoint
from specjax.io.orbax import WEIGHTS as ORBAX_WEIGHTS
from specjax.io.orbax import OrbaxCheckpoint
from specjax.io.renamed import as_language_model
from specjax.io.safetensors import SafetensorsCheckpoint
from specjax.models import DecoderLM, assemble, describe, sharded, weight_sharding
from specjax.sharding import RULES, Layout, Rules

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?")


def load(
    name: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    quantize: Literal["int8"] | None = None,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
    cache_dir: str | os.PathLike[str] | None = None,
    revision: str | None = None,
) -> DecoderLM:
    """Load a model with its tokenizer, one tensor at a time.

    Args:
        name: an alias (``"smollm2-135m-instruct"``), a folder with config.json and safetensors
            (or what ``save`` wrote), a ``.gguf`` file, or a Hub id (``"org/name"``,
            ``"org/name/file.gguf"``).
        dtype: of the weights; float32 on CPU and bfloat16 on accelerators if None.
        quantize: "int8" keeps kernels in eight bits, with a scale for each output channel.
        mesh: lay the weights over these devices; each reads its slices.
        rules: which axis of the mesh cuts what, such as ``specjax.sharding.REPLICATED``; by
            default rows lie along "data", and heads, feed-forward and vocabulary along "model".
        cache_dir: where downloads are kept; ``~/.cache/specjax`` for aliases and the Hub's own
            cache for Hub ids if None.
        revision: a branch, a tag or a commit of a Hub repository.

    Raises:
        ValueError: ``name`` is none of these, ``dtype`` is no float, a file is corrupt, or the
            architecture or a quantisation is not supported.
        OSError: something is missing, forbidden or cannot be fetched.
    """
    dtype = _weight_dtype(dtype)
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize: must be 'int8' or None, got {quantize!r}")
    checkpoint = open_checkpoint(name, cache_dir=cache_dir, revision=revision)
    layout = None if mesh is None else Layout(mesh, rules)
    return from_checkpoint(checkpoint, dtype, quantize=quantize, layout=layout)


def open_checkpoint(
    name: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    revision: str | None = None,
) -> Checkpoint | OrbaxCheckpoint:
    """Find a stored model, as ``load`` does, without reading its weights."""
    text = os.fspath(name)
    path = Path(text).expanduser()
    if revision is not None and (text in ALIASES or path.exists()):
        raise ValueError(f"revision={revision!r} is for Hub ids; {text!r} is none")
    # A folder of that name in the working directory must not shadow an alias.
    if text in ALIASES:
        return GGUFCheckpoint(fetch(text, cache_dir))
    if text and path.exists():
        return _open_local(path)
    if text.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(text):
        raise ValueError(_unknown(text))
    from specjax.io.hub import fetch_from_hub

    return _open_local(fetch_from_hub(text, revision=revision, cache_dir=cache_dir))


def from_checkpoint(
    checkpoint: Checkpoint | OrbaxCheckpoint,
    dtype: DTypeLike = jnp.float32,
    *,
    quantize: Literal["int8"] | None = None,
    layout: Layout | None = None,
) -> DecoderLM:
    """Build the model that a checkpoint describes, with a progress bar on a terminal.

    Raises:
        ValueError: its architecture is not supported, or a tensor is missing, extra or misshapen.
    """
    if not isinstance(checkpoint, OrbaxCheckpoint):
        checkpoint = as_language_model(checkpoint)
    _require_layers(checkpoint)
    table = describe(checkpoint.config)
    if layout is not None:
        table = dataclasses.replace(table, config=sharded(table.config, layout))
    if isinstance(checkpoint, OrbaxCheckpoint):
        read = partial(checkpoint.restore, table.config)
    else:
        read = partial(assemble, table, checkpoint)
    weights = read(
        dtype,
        shardings=None if layout is None else partial(weight_sharding, table.config, layout),
        quantized=quantize == "int8",
        watch=partial(tqdm, desc="weights", unit="tensor", disable=None, leave=False),
    )
    return DecoderLM(weights, table.config, checkpoint.tokenizer(), layout)


def _require_layers(checkpoint: Checkpoint | OrbaxCheckpoint) -> None:
    """Refuse more layers than there are tensors, before anything is made for each of them."""
    held = len(list(checkpoint.names()))
    for name in ("num_hidden_layers", "n_layer"):
        num = checkpoint.config.get(name)
        if isinstance(num, int) and num > held:
            raise ValueError(
                f"the configuration asks for {num} layers, but the checkpoint holds only "
                f"{held} tensors: one of the two is incomplete or corrupt"
            )


def _open_local(path: Path) -> Checkpoint | OrbaxCheckpoint:
    if (path / ORBAX_WEIGHTS).is_dir():
        return OrbaxCheckpoint(path)
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if path.suffix == ".gguf":
        return GGUFCheckpoint(path)
    raise ValueError(f"{path} is neither a folder nor a .gguf file; pass its folder")


def _weight_dtype(dtype: DTypeLike | None) -> jnp.dtype:
    if dtype is None:
        return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype must be a floating type such as jnp.bfloat16, got {dtype!r}")
    return jnp.dtype(dtype)


def _unknown(name: str) -> str:
    return (
        f"no model {name!r}: there is no such file or folder. name is an alias "
        f"({', '.join(ALIASES)}), a folder with config.json and safetensors, a .gguf file, "
        "or a Hub id ('org/name', 'org/name/file.gguf')"
    )
