"""python tpu_scripts/compile_check.py --target llama-3.1-8b --topology v5e:2x2 --layers 4

Compiles whole programs for TPUs with the TPU's own compiler and checks what it made of them. No
TPU is needed and no weights, only pip install -e ".[plan]". Expect exit status 0 and, for each
setup, a line a promise, such as these of the command above (two busy CPU cores, two minutes):

    llama-3.1-8b of 4 layers, n-gram, K = 5, batch 1, context 4096, bfloat16, v5e:2x2 as 1x4
      kept    one program: prefill, and one loop that drafts, verifies, accepts and commits
      kept    no infeed, outfeed or host call inside a loop: 0
      kept    caches updated in place: 16.9 MB aliased of 16.8 MB, copies of a whole cache 0
      kept    temporaries under 10% of the weights: 31.8 MB, 3.3% of 961.6 MB; weights relaid 0
      kept    about two all-reduces a layer in the verifying pass: 9 for 4 layers, 0 of another kind
      kept    no gather of a weight or a cache: 0
      kept    cache bytes read per block independent of K: 0.5 MB at K = 1, 5, 8
      kept    compiled in under 120 s: 50 s, 44 s of a core

Without arguments it checks Llama-3.1-70B with a 1B draft at batch 1 and 16 on v5e:4x4 and
v5p:2x2x2, Llama-3.1-8B on v5e:2x2, and Qwen3-30B-A3B on v6e:2x4: expect an hour. --json prints
an object a setup instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

LISTED = [
    *(
        {
            "target": "llama-3.1-70b",
            "drafter": "llama-3.2-1b",
            "topology": topology,
            "batch": batch,
        }
        for topology in ("v5e:4x4", "v5p:2x2x2")
        for batch in (1, 16)
    ),
    {"target": "llama-3.1-8b", "drafter": None, "topology": "v5e:2x2", "batch": 1},
    {"target": "qwen3-30b-a3b", "drafter": None, "topology": "v6e:2x4", "batch": 1},
]
"""What is checked where nothing is asked for: all weights cut along every device."""

SECONDS = 120.0
TEMPORARIES = 0.1
LENGTHS = (1, 8)


@dataclasses.dataclass(frozen=True)
class Promise:
    """What a program is to be, whether it is, and the figures."""

    name: str
    kept: bool
    found: str


def main(argv: Sequence[str] | None = None) -> int:
    """Compile every setup and print its promises; 1 where one is broken, 2 for a bad argument."""
    args = parse(argv)
    cases = LISTED if args.target is None else [asked(args)]
    kept = True
    try:
        # jax and libtpu read what this sets when they start.
        from specjax.plan.topology import prepare_environment

        for case in cases:
            prepare_environment(case["topology"])
        setups = [setup_of(case, args) for case in cases]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    steps = len(setups) * (2 + len(LENGTHS))
    with tqdm(total=steps, unit="program", file=sys.stderr, disable=args.quiet) as bar:
        for case, setup in zip(cases, setups, strict=True):
            promises, details = check(setup, bar)
            kept &= all(promise.kept for promise in promises)
            bar.clear()
            report(title(case, setup), promises, details, args.json)
    return 0 if kept else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="a public model or a config.json; default: the list")
    parser.add_argument("--drafter", help="a draft model; default: n-gram")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--draft-length", type=int, default=5)
    parser.add_argument("--layers", type=int, help="only so many layers of each model")
    parser.add_argument("--json", action="store_true", help="an object a line and setup")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    if args.layers is not None and args.layers < 1:
        parser.error(f"argument --layers: must be at least 1, got {args.layers}")
    return args


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The one setup that the command line describes."""
    return {name: getattr(args, name) for name in ("target", "drafter", "topology", "batch")}


def setup_of(case: dict[str, Any], args: argparse.Namespace) -> Any:
    """What to compile."""
    from specjax.plan.public import find_config
    from specjax.plan.setup import Setup

    def shape(name: str | None) -> Any:
        if name is None:
            return None
        config = find_config(name)
        return dataclasses.replace(config, layers=config.layers[: args.layers])

    return Setup(
        shape(case["target"]),
        case["topology"],
        shape(case["drafter"]),
        draft_length=args.draft_length,
        batch=case["batch"],
        context=args.context,
    )


def title(case: dict[str, Any], setup: Any) -> str:
    """A setup in a line."""
    data, model = setup.mesh_shape
    return (
        f"{case['target']} of {setup.target.num_layers} layers, {case['drafter'] or 'n-gram'}, "
        f"K = {setup.draft_length}, batch {setup.batch}, context {setup.context}, {setup.dtype}, "
        f"{case['topology']} as {data}x{model}"
    )


def check(setup: Any, bar: Any) -> tuple[list[Promise], dict[str, Any]]:
    """Compile one setup, and the verifying pass at several draft lengths."""
    from specjax.plan.facts import compile_setup, pass_block_bytes

    reads = {}
    for length in LENGTHS:
        reads[length] = pass_block_bytes(setup.but(draft_length=length))
        bar.update()
    facts = compile_setup(setup)
    bar.update(2)
    details = {**facts.details, "pass_block_bytes": reads}
    if facts.whole is None:
        short = facts.required - facts.available
        return [Promise("fits the memory of a device", False, f"{mb(short)} short")], details
    return promises_of(setup, facts, reads), details


def promises_of(setup: Any, facts: Any, reads: dict[int, int]) -> list[Promise]:
    """What the issue asks of a program, each with what was found."""
    whole, streamed, layers = facts.whole, facts.streamed, setup.target.num_layers
    exchanges = whole.exchanges["verify"]
    reduces, others = exchanges.get("all-reduce", 0), sum(exchanges.values())
    copied, gathered = whole.copied + streamed.copied, whole.gathered + streamed.gathered
    calls = whole.host_calls + streamed.host_calls
    share, seconds = facts.temporaries / facts.weights, whole.seconds
    lengths = sorted({setup.draft_length, *reads})
    blocks = {read * layers for read in reads.values()} | {whole.block_bytes}
    return [
        Promise(
            "one program: prefill, and one loop that drafts, verifies, accepts and commits",
            whole.has_round,
            "",
        ),
        Promise("no infeed, outfeed or host call inside a loop", not calls, some(calls)),
        Promise(
            "caches updated in place",
            streamed.aliased >= facts.caches and not copied,
            f"{mb(streamed.aliased)} aliased of {mb(facts.caches)}, "
            f"copies of a whole cache {some(copied)}",
        ),
        Promise(
            f"temporaries under {TEMPORARIES:.0%} of the weights",
            share < TEMPORARIES,
            f"{mb(facts.temporaries)}, {share:.1%} of {mb(facts.weights)}; "
            f"weights relaid {some(whole.turned)}",
        ),
        Promise(
            "about two all-reduces a layer in the verifying pass",
            # One more for the embedding; nothing else is exchanged in a pass.
            layers < reduces <= 2 * layers + 2 and others == reduces,
            f"{reduces} for {layers} layers, {others - reduces} of another kind",
        ),
        Promise("no gather of a weight or a cache", not gathered, some(gathered)),
        Promise(
            "cache bytes read per block independent of K",
            len(blocks) == 1 and blocks != {0},
            f"{', '.join(map(mb, sorted(blocks)))} at K = {', '.join(map(str, lengths))}",
        ),
        Promise(
            f"compiled in under {SECONDS:.0f} s",
            seconds < SECONDS,
            f"{seconds:.0f} s, {whole.core_seconds:.0f} s of a core",
        ),
    ]


def mb(size: float) -> str:
    """Bytes in millions."""
    return f"{size / 1e6:.1f} MB"


def some(names: Sequence[str]) -> str:
    """How many there are, and the first few."""
    return "; ".join([str(len(names)), *names[:3]])


def report(heading: str, promises: list[Promise], details: dict[str, Any], as_json: bool) -> None:
    """Print one setup."""
    if as_json:
        kept = [dataclasses.asdict(promise) for promise in promises]
        print(json.dumps({"setup": heading, "promises": kept, "facts": details}), flush=True)
        return
    print(heading)
    for promise in promises:
        end = f": {promise.found}" if promise.found else ""
        print(f"  {'kept   ' if promise.kept else 'BROKEN '} {promise.name}{end}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
