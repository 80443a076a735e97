"""``specjax check``: a verdict and figures for every check of one target and drafter."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from specjax.check import Finding, Report, check_pair
from specjax.cli.generate import build_decoder
from specjax.cli.imported import imported, is_import
from specjax.io import load


def run(args: argparse.Namespace) -> int:
    """Check the pair: 0 if nothing failed, else 1.

    Raises:
        ValueError: an argument is out of range, or does not go with another.
        OSError: a model cannot be read.
    """
    if args.drafter == "none":
        raise ValueError("--drafter: none drafts nothing, so there is nothing to check; name one")
    target, drafter = pair_of(args)
    names = ("temperature", "top_k", "top_p", "min_p", "num_tokens", "keys", "tolerance", "seed")
    report = check_pair(
        target,
        drafter,
        verifier=verifier_of(args),
        prompts=getattr(args, "prompt", None),
        only=getattr(args, "only", None),
        note=_note,
        **{name: getattr(args, name) for name in names},
    )
    if args.json:
        print(json.dumps(report.to_dict(), allow_nan=False))
    else:
        print(*report_lines(report), sep="\n")
    return 0 if report.passed else 1


def pair_of(args: argparse.Namespace) -> tuple[Any, Any]:
    """Load the target, and load, make or import the drafter."""
    if not is_import(args.drafter):
        named = argparse.Namespace(**(vars(args) | {"verifier": None}))
        program = build_decoder(named).program
        return program.target, program.drafter
    drafter = imported(args.drafter, "--drafter")
    if "draft_length" in args:
        raise ValueError("--draft-length: an imported drafter brings its own; drop one")
    _note(f"loading {args.target}")
    target = load(args.target)
    made = not isinstance(drafter, type) and hasattr(drafter, "propose")
    return target, drafter if made else drafter(target)


def verifier_of(args: argparse.Namespace) -> Any:
    """The verifier by name, an imported one, or None for the default."""
    name = getattr(args, "verifier", None)
    if name is None or not is_import(name):
        return name
    verifier = imported(name, "--verifier")
    return verifier() if isinstance(verifier, type) else verifier


def report_lines(report: Report) -> list[str]:
    """A line for each check, one more for each that did not pass, and the whole in a word."""
    width = max(len(check.name) for check in report.checks)
    lines = [line for check in report.checks for line in _finding_lines(check, width)]
    skipped = [check.name for check in report.checks if check.passed is None]
    last = f"FAILED: {', '.join(report.failed)}" if report.failed else "passed"
    return [*lines, last + (f"; skipped: {', '.join(skipped)}" if skipped else "")]


def _finding_lines(check: Finding, width: int) -> list[str]:
    figures = "; ".join(
        f"{name.replace('_', ' ')} {shown(value)}" for name, value in check.figures.items()
    )
    lines = [f"{check.verdict:<8} {check.name:<{width}}  {figures}".rstrip()]
    return lines if check.passed else [*lines, " " * (width + 11) + check.meaning]


def shown(value: Any) -> str:
    """A figure in few characters.

    >>> shown({"token": 0.98765, "block": 1.0}), shown([0.5, float("nan")]), shown([])
    ('token 0.988, block 1', '0.5 -', 'none')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {shown(x)}" for name, x in value.items())
    if isinstance(value, list):
        several = [f"({shown(x)})" if isinstance(x, dict) else shown(x) for x in value]
        return " ".join(several[:8]) or "none"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.3g}"
    return str(value)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
