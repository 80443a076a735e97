"""The source stays in small, plainly named pieces; import-linter watches who imports whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT)
    for package in ("specjax", "models")
    for path in (ROOT / package).rglob("*.py")
)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_source_stays_small(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    num_lines = len(text.splitlines())
    assert num_lines <= 300
    long = {f.name: n for f in _functions(ast.parse(text)) if (n := _body_lines(f)) > 40}
    assert not long


def test_names_say_what_a_file_holds():
    catch_all = {"utils", "util", "helpers", "common", "misc"}
    assert not [
        path
        for path in SOURCES
        if catch_all & {*path.with_suffix("").parts} or path.stem.endswith(("_new", "_legacy"))
    ]
