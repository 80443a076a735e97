"""Model families, all on one decoder: ``family(architecture)`` finds the right one."""

from __future__ import annotations

if __name__ == "models":
    raise ImportError("import specjax.models: this folder is that package")

from types import ModuleType

from specjax.models import llama
from specjax.models.decoder import Config, DecoderLM, Weights, random_weights
from specjax.models.weights import Checkpoint, assemble

__all__ = ["Checkpoint", "Config", "DecoderLM", "Weights", "assemble", "family", "random_weights"]

_FAMILIES = {name: module for module in (llama,) for name in module.ARCHITECTURES}


def family(architecture: str) -> ModuleType:
    """The module with ``config_from_hf`` and ``weight_table`` for a checkpoint's architecture.

    >>> family("LlamaForCausalLM").__name__
    'specjax.models.llama'

    Raises:
        ValueError: the architecture is not supported.
    """
    if architecture not in _FAMILIES:
        raise ValueError(
            f"architecture {architecture!r} is not supported; supported are {', '.join(_FAMILIES)}"
        )
    return _FAMILIES[architecture]
