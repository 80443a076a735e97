"""``specjax plan``: what a target and a drafter need and bring on a machine, before they run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specjax.cli.arguments import mesh_shape
from specjax.plan.facts import Facts, compile_setup
from specjax.plan.plot import draw
from specjax.plan.public import find_config
from specjax.plan.report import Plan
from specjax.plan.setup import Setup
from specjax.plan.text import lines
from specjax.plan.topology import prepare_environment


def run(args: argparse.Namespace) -> int:
    """Plan, and report: 0 if it fits, 1 if it does not.

    Raises:
        ValueError: an argument is out of range, or does not go with another.
        OSError: a configuration cannot be read, or the picture not written.
    """
    setup = setup_of(args)
    compiles = setup.machine.is_tpu and not args.no_compile
    plan = Plan(setup, compiled(setup, args.topology) if compiles else None)
    if args.json:
        print(json.dumps(plan.to_dict(), allow_nan=False))
    else:
        print(*lines(plan), sep="\n")
    if "png" in args:
        draw(plan, Path(args.png))
        print(f"wrote {args.png}", file=sys.stderr)
    return 0 if plan.fits else 1


def setup_of(args: argparse.Namespace) -> Setup:
    """What the arguments ask for."""
    plain = args.drafter == "none"
    named = not plain and args.drafter != "ngram"
    if plain and "draft_length" in args:
        raise ValueError("--draft-length: --drafter none drafts nothing; drop one")
    return Setup(
        target=find_config(args.target),
        topology=args.topology,
        drafter=find_config(args.drafter) if named else None,
        draft_length=0 if plain else getattr(args, "draft_length", Setup.draft_length),
        mesh=mesh_of(getattr(args, "mesh", None)),
        placement="replicated" if args.replicate_drafter else "sharded",
        prompt=getattr(args, "prompt", None),
        **{name: getattr(args, name) for name in ("batch", "context", "dtype")},
    )


def mesh_of(text: str | None) -> tuple[int, int] | None:
    """Read DATAxMODEL.

    >>> mesh_of("2x8"), mesh_of(None)
    ((2, 8), None)

    Raises:
        ValueError: it is not two numbers.
    """
    if text is None:
        return None
    try:
        return mesh_shape(text.lower())
    except argparse.ArgumentTypeError:
        raise ValueError(f"--mesh: {text!r} is no mesh; write DATAxMODEL, such as 1x16") from None


def compiled(setup: Setup, topology: str) -> Facts:
    """Ask the TPU's compiler, in a process that uses no TPU.

    Raises:
        ValueError: libtpu is missing, or has no such topology.
    """
    try:
        prepare_environment(topology)
    except ValueError as error:
        raise ValueError(f"{error}, or give --no-compile") from None
    print(f"compiling for {topology}, which takes minutes", file=sys.stderr, flush=True)
    return compile_setup(setup, streamed=False)
