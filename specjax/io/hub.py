"""Models of the Hugging Face Hub: safetensors folders, or one GGUF file of a repository."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

PATTERNS = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")
"""All that is ever downloaded: weights without pickles, configuration, tokenizer; no code."""

OTHER = ("*/*",)
"""Subfolders hold the same weights in other formats."""


def fetch_from_hub(
    name: str, *, revision: str | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> Path:
    """Download "org/name", or the one file "org/name/file.gguf", and return its local path.

    Args:
        name: the repository on the Hub, or a GGUF file in one.
        revision: a branch, a tag or a commit; the main branch if None.
        cache_dir: where files are kept; the Hub's own cache if None.

    Raises:
        OSError: it is missing, gated or out of reach; the message says what to do.
    """
    org, repository, *inner = name.split("/")
    repo_id = f"{org}/{repository}"
    where = {"revision": revision, "cache_dir": None if cache_dir is None else Path(cache_dir)}
    try:
        if inner:
            return Path(huggingface_hub.hf_hub_download(repo_id, "/".join(inner), **where))
        folder = Path(
            huggingface_hub.snapshot_download(
                repo_id, allow_patterns=list(PATTERNS), ignore_patterns=list(OTHER), **where
            )
        )
    except errors.HFValidationError as error:
        raise ValueError(f"{name!r} is no Hub id: {error}") from error
    except Exception as error:  # the network below the client has exceptions of its own
        raise OSError(
            f"{name!r} is neither here nor can it be fetched from the Hub: "
            f"{_remedy(error, repo_id)}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise OSError(
            f"{name!r} holds no safetensors, the only weights that are loaded from a repository; "
            f"if it holds GGUF files, name one of them: '{name}/FILE.gguf'"
        )
    return folder


def _remedy(error: Exception, repo_id: str) -> str:
    page = f"https://huggingface.co/{repo_id}"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated. Accept its terms at {page}, then run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no such repository, or it is private. See {page}, or run `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no such revision. See {page}/tree/main for its branches and tags"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        return f"the repository has no such file. See {page}/tree/main for its files"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        return f"{error}. Free some space or give the right to write, or pass another cache_dir"
    return (
        f"{error}. Without a connection: on a machine that has one, run `hf download {repo_id} "
        "--local-dir FOLDER`, copy the folder here and load that"
    )
