"""``load``: a model by alias, folder, file or Hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax.io.aliases import ALIASES
from specjax.io.checkpoint import Checkpoint
from specjax.io.fetch import fetch
from specjax.io.gguf import GGUFCheckpoint
from specjax.io.safetensors import SafetensorsCheckpoint
from specjax.models import DecoderLM, assemble, family

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?")


def load(
    name: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    revision: str | None = None,
) -> DecoderLM:
    """Load a model with its tokenizer.

    Args:
        name: an alias (``"smollm2-135m-instruct"``), a folder with config.json and safetensors,
            a ``.gguf`` file, or a Hub id (``"org/name"``, ``"org/name/file.gguf"``).
        dtype: of the weights; float32 on CPU and bfloat16 on accelerators if None.
        cache_dir: where downloads are kept; ``~/.cache/specjax`` for aliases and the Hub's own
            cache for Hub ids if None.
        revision: a branch, a tag or a commit of a Hub repository.

    Raises:
        ValueError: ``name`` is none of these, ``dtype`` is no float, a file is corrupt, or the
            architecture or a quantisation is not supported.
        OSError: something is missing, forbidden or cannot be fetched.
    """
    dtype = _weight_dtype(dtype)
    checkpoint = open_checkpoint(name, cache_dir=cache_dir, revision=revision)
    return from_checkpoint(checkpoint, dtype)


def open_checkpoint(
    name: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    revision: str | None = None,
) -> Checkpoint:
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


def from_checkpoint(checkpoint: Checkpoint, dtype: DTypeLike = jnp.float32) -> DecoderLM:
    """Build the model that a checkpoint describes.

    Raises:
        ValueError: its architecture is not supported, or a tensor is missing, extra or misshapen.
    """
    architectures = checkpoint.config.get("architectures") or ["(none named)"]
    module = family(architectures[0])
    config = module.config_from_hf(checkpoint.config)
    # Before anything is allocated for the layers that a corrupt number asks for.
    if config.num_layers > (held := len(list(checkpoint.names()))):
        raise ValueError(
            f"the configuration asks for {config.num_layers} layers, but the checkpoint holds only "
            f"{held} tensors: one of the two is incomplete or corrupt"
        )
    weights = assemble(module.weight_table(config), checkpoint, dtype)
    return DecoderLM(weights=weights, config=config, tokenizer=checkpoint.tokenizer())


def _open_local(path: Path) -> Checkpoint:
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
