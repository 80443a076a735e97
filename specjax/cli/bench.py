"""``specjax bench``: from arguments to tables, records and pictures."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from specjax.bench import plots
from specjax.bench.costs import middling
from specjax.bench.environment import environment, num_cores
from specjax.bench.measured import Bench, measure
from specjax.bench.peers import Peer, load_peer
from specjax.bench.questions import Question, choose, read_questions
from specjax.bench.report import lines
from specjax.bench.turns import Asking, Turn, ask
from specjax.bench.variants import (
    PeerVariant,
    Variant,
    adapted,
    peer_variants_of,
    refuse_repeated,
    variants_of,
)
from specjax.bench.workloads import WORKLOADS, make
from specjax.cli.arguments import DRAFT_LENGTH
from specjax.cli.drafters import drafter_of
from specjax.io import load
from specjax.io.load import open_checkpoint


@dataclasses.dataclass(frozen=True)
class Asked:
    """The arguments, defaults filled in: what the JSON calls settings."""

    prompts: str | None
    workload: list[str]
    categories: list[str] | None
    per_category: int | None
    target: str
    drafter: list[str]
    draft_length: list[int]
    verifier: list[str | None]
    adaptive: bool
    peer: list[str]
    threads: int
    temperature: list[float | None]
    batch: list[int]
    max_new_tokens: int | None
    repeats: int
    seed: int

    @classmethod
    def of(cls, args: argparse.Namespace) -> Asked:
        """Read the arguments."""
        defaults = {
            "prompts": None,
            "workload": [],
            "categories": None,
            "per_category": None,
            "drafter": ["ngram"],
            "draft_length": [DRAFT_LENGTH],
            "verifier": [None],
            "peer": [],
            "threads": num_cores(),
            "temperature": [None],
            "batch": [1],
            "max_new_tokens": None,
        }
        given = {field.name for field in dataclasses.fields(cls)}
        return cls(**defaults | {name: x for name, x in vars(args).items() if name in given})

    def check(self) -> None:
        """Refuse what is out of range, before anything is loaded.

        Raises:
            ValueError: naming the argument.
        """
        for name, least in {"repeats": 1, "threads": 1, "max_new_tokens": 1, "seed": 0}.items():
            _at_least(name, getattr(self, name), least)
        for name, least in {"batch": 1, "temperature": 0, "draft_length": 1}.items():
            refuse_repeated(_flag(name), getattr(self, name))
            for value in getattr(self, name):
                _at_least(name, value, least)
        for name in ("peer", "workload", "drafter", "verifier"):
            refuse_repeated(_flag(name), getattr(self, name))
        if self.prompts is None and not self.workload:
            raise ValueError("PROMPTS: name a .jsonl file, or a --workload such as editing")
        if self.adaptive and self.drafter == ["none"]:
            raise ValueError("--adaptive: there are no drafts with --drafter none; drop one")

    def questions(self) -> list[Question]:
        """Read, make and choose.

        Raises:
            ValueError: a line is no question, or there is no such workload or category.
            OSError: the file cannot be read.
        """
        found = [] if self.prompts is None else read_questions(self.prompts)
        names = list(WORKLOADS) if "all" in self.workload else self.workload
        found += make(names, self.seed)
        return choose(found, self.categories, self.per_category)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _at_least(name: str, value: float | None, least: int) -> None:
    if value is not None and not value >= least:
        raise ValueError(f"{_flag(name)}: must be at least {least}, got {value:g}")


def run(args: argparse.Namespace) -> int:
    """Measure, and show.

    Raises:
        ValueError: an argument is out of range, or does not go with another.
        OSError: something cannot be read or written.
    """
    asked = Asked.of(args)
    asked.check()
    _prepare_outputs(args)
    questions = asked.questions()
    where = environment()
    if (where["load_average"] or 0) > 1:
        _note("others use this machine: they slow some contestants more than others")
    bench = bench_of(asked, questions, args.quiet)
    measured = measure(bench, where, dataclasses.asdict(asked))
    print(*lines(measured), sep="\n")
    if "json" in args:
        text = json.dumps(measured.to_dict(), allow_nan=False)
        Path(args.json).write_text(text + "\n", encoding="utf-8")
        _note(f"wrote {args.json}")
    if "png" in args:
        for path in plots.draw(measured, Path(args.png)):
            _note(f"wrote {path}")
    return 0


def _prepare_outputs(args: argparse.Namespace) -> None:
    """Fail now, not after an hour of measuring, if nothing could be written."""
    if "json" in args:
        Path(args.json).touch()
    if "png" in args:
        plots.require_matplotlib()
        Path(args.png).mkdir(parents=True, exist_ok=True)


def bench_of(asked: Asked, questions: list[Question], quiet: bool) -> Bench:
    """Load everything, and ask plain decoding what later turns' prompts need."""
    _note(f"loading {asked.target}")
    target = load(asked.target)
    variants = variants_of(
        target,
        asked.drafter,
        asked.draft_length,
        asked.verifier,
        lambda name, length: drafter_of(name, target, asked.target, length),
    )
    plain = variants[0].decoder
    turns = {
        heat: list(ask(plain, questions, Asking(heat, asked.max_new_tokens, asked.seed)))
        for heat in asked.temperature
    }
    every = [turn for some in turns.values() for turn in some]
    if asked.adaptive:
        variants += adaptive(variants, every)
    peers = peers_of(asked, every)
    return Bench(variants, peers, turns, asked.batch, asked.repeats, quiet=quiet)


def adaptive(variants: list[Variant], turns: list[Turn]) -> list[Variant]:
    """Each that drafts, once more and adapting."""
    prompt, found = middling([turn.prompt for turn in turns]), []
    for variant in variants[1:]:
        _note(f"measuring what drafts and passes cost {variant.name}")
        found.append(adapted(variant, prompt))
    return found


def peers_of(asked: Asked, turns: list[Turn]) -> list[PeerVariant]:
    """Load the peers, with room for the longest prompt and answer."""
    found: list[Peer] = []
    longest = max(turn.length for turn in turns)
    checkpoint = open_checkpoint(asked.target) if asked.peer else None
    for name in asked.peer:
        _note(f"loading {name}")
        found.append(load_peer(name, checkpoint, num_threads=asked.threads, max_length=longest))
    return peer_variants_of(found, asked.draft_length)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
