"""Scripts of tpu_scripts/ as modules, so that tests call them in their own process."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tpu_scripts"


def load_script(name):
    """Import ``tpu_scripts/{name}.py``."""
    spec = importlib.util.spec_from_file_location(f"tpu_scripts_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
