"""Where and with what something was measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("jax", "jaxlib", "numpy", "transformers", "torch", "llama-cpp-python")


def environment(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Versions, devices, cores, date, the command line, and the commit of a source tree, if any."""
    device = jax.devices()[0]
    return {
        "specjax": version_of("specjax"),
        "python": platform.python_version(),
        **{package: version_of(package) for package in PACKAGES},
        "platform": platform.platform(),
        "device_kind": device.device_kind,
        "num_devices": len(jax.devices()),
        "num_cores": num_cores(),
        "load_average": load_average(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv if argv is None else argv),
        "commit": commit_of(Path(__file__).parents[2]),
    }


def version_of(package: str) -> str | None:
    """Version of an installed package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """Programs that ran or waited in the last minute, None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def commit_of(root: Path) -> str | None:
    """The commit that a source tree stands at, with "+" if files differ; None where there is none.

    >>> commit_of(Path("/nowhere")) is None
    True
    """
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
