"""The notebook runs from top to bottom, with the real model."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from specjax.io.fetch import fetch

PATH = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(PATH, as_version=4)


def outputs_of(cell):
    """What a cell printed on standard output."""
    streams = [o for o in cell.get("outputs", ()) if o.output_type == "stream"]
    return "".join(o.text for o in streams if o.name == "stdout")


def test_what_is_committed_is_small_and_clean(notebook):
    nbformat.validate(notebook)
    assert PATH.stat().st_size < 20_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output.output_type == "stream" and output.name == "stdout" for output in outputs)
    assert outputs, "the notebook is committed with what it prints"


@pytest.mark.slow
# Not ours: the kernel's client closes its sockets when it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_it_runs_from_top_to_bottom(notebook, tmp_path, monkeypatch):
    try:
        fetch("smollm2-135m-instruct")
    except OSError as error:
        pytest.skip(f"the model cannot be had here: {error}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PATH.parents[1]), *sys.path]))
    run = nbformat.from_dict(notebook)
    client = NotebookClient(
        run, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = "".join(outputs_of(cell) for cell in run.cells)
    assert "Every evening, the keeper climbs the stairs" in printed
    assert "times plain decoding's tokens per second" in printed
    assert "|" in printed
