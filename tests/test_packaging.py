"""The folder models/ reaches users as ``specjax.models``: once, and under no other name."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Prints where each loaded module lies: one line a module, symlinks resolved.
LIST_MODULES = """
import pathlib, sys
import specjax.models
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("specjax", "models") and getattr(module, "__file__", None):
        print(pathlib.Path(module.__file__).resolve())
"""


def _run(*args: str | Path, cwd: Path, path: Path | str = ""):
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def _sources(folder: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel made from a source distribution, as a package index would serve it."""
    copy = tmp_path_factory.mktemp("build") / "specjax"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    result = _run("-m", "build", "--no-isolation", cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr
    return next((copy / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def site_packages(wheel, tmp_path_factory) -> Path:
    """A folder into which nothing but the wheel was installed."""
    target = tmp_path_factory.mktemp("site-packages")
    arguments = ["install", "--no-deps", "--no-index", "--no-compile", "--target", target, wheel]
    result = _run("-m", "pip", *arguments, cwd=wheel.parent)
    assert result.returncode == 0, result.stderr
    return target


def test_wheel_holds_every_source_once(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    modules = {name for name in names if name.endswith(".py")}
    of_models = {f"specjax/{name}" for name in _sources("models")}
    assert modules == _sources("specjax") | of_models
    assert "specjax/py.typed" in names


def test_installed_package_imports_from_anywhere(site_packages, tmp_path):
    assert not (site_packages / "models").exists()
    result = _run("-c", LIST_MODULES, cwd=tmp_path, path=site_packages)
    assert result.returncode == 0, result.stderr
    files = [Path(line) for line in result.stdout.split()]
    assert len(files) == len(set(files))
    assert all(file.is_relative_to(site_packages.resolve()) for file in files)


def test_checkout_loads_each_source_once():
    result = _run("-c", LIST_MODULES, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    files = result.stdout.split()
    assert str(ROOT / "models/__init__.py") in files
    assert len(files) == len(set(files))


def test_models_under_its_folder_name_is_refused():
    result = _run("-c", "import models", cwd=ROOT)
    assert "ImportError" in result.stderr
    assert "specjax.models" in result.stderr
