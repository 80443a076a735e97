"""The metadata of a GGUF file as the configuration that Hugging Face would store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from specjax.io.gguf_families import FAMILIES, num_experts
from specjax.io.gguf_keys import Keys


def config_from_metadata(
    keys: Keys, names: Collection[str], factors: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Translate GGUF metadata.

    Args:
        keys: the file's metadata, of one of ``FAMILIES``.
        names: the tensors in the file, under their names on the Hub.
        factors: its tables of rotary divisors, f32[head_dim / 2] each.

    Raises:
        ValueError: the rope scaling or another feature is not supported, or a key is missing or no
            positive number.
    """
    layers = keys.whole("block_count")
    # Before a list of that length is made; every layer has a tensor.
    if layers > len(names):
        raise keys.error(
            f"the configuration asks for {layers} layers, but the checkpoint holds only "
            f"{len(names)} tensors: one of the two is incomplete or corrupt"
        )
    tokens = keys.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list):
        raise keys.error("tokenizer.ggml.tokens is no list of strings")
    shared = {
        "vocab_size": keys.whole("vocab_size", len(tokens), least=0),
        "bos_token_id": keys.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": keys.metadata.get("tokenizer.ggml.eos_token_id"),
    }
    return shared | FAMILIES[family_of(keys)](keys, names, factors)


def family_of(keys: Keys) -> str:
    """The key of ``FAMILIES`` that a file belongs to.

    Raises:
        ValueError: it belongs to none.
    """
    kind = "mixtral" if keys.kind == "llama" and num_experts(keys) else keys.kind
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES.keys() - {"mixtral"}))
        raise keys.error(f"unsupported architecture {kind!r}; supported in GGUF are {known}")
    return kind
