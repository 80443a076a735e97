"""What the drafters that need no training bring: tokens a pass and speedup, by category.

python -m specjax.bench.without_training PROMPTS.jsonl [--per-category 2] [--num-tokens 128]

Each line of the file has ``category`` and ``turns``; the first turn is asked. Every prompt is
decoded plainly at temperature 0 and 1. What a drafter that reads text alone, or the first layers,
would have brought on these very texts is then exact by replay (``specjax.bench.replay``), and its
speedup is predicted from passes timed in the same run: tokens over what their rounds cost.
``--timed 1`` decodes one prompt of each category with the drafters themselves, in turns with
plain decoding. Two cores: expect half an hour, an hour with ``--timed 2``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import specjax
from specjax import compiled
from specjax.api import Decoder
from specjax.bench import cases
from specjax.bench.cases import LENGTHS, WIDTHS, RoundCosts
from specjax.bench.costs import middling
from specjax.bench.replay import replay
from specjax.bench.turns import padded
from specjax.datastore import Datastore, build
from specjax.drafters import EarlyExit, NGram, Retrieval, Suffix
from specjax.metrics import Metrics, ratio

GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag")
"""Categories of their own; all others are conversation."""

OUTSIDE = 2
"""Other prompts of each category whose outputs fill the store."""


def group_of(category: str) -> str:
    """A category, or ``chat`` for those of a few prompts."""
    return category if category in GROUPS else "chat"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and whether adapting keeps its promises."""
    parser = argparse.ArgumentParser(description="Drafters without training, by category.")
    parser.add_argument("prompts", type=Path, help="a JSONL file with category and turns")
    parser.add_argument("--target", default="smollm2-135m-instruct", help="what to load")
    parser.add_argument("--per-category", type=int, default=2, help="prompts of each category")
    parser.add_argument("--num-tokens", type=int, default=128, help="tokens an answer")
    parser.add_argument("--timed", type=int, default=0, help="of these, prompts to decode, too")
    parser.add_argument("--temperature", type=float, action="append", help="default: 0 and 1")
    args = parser.parse_args(argv)
    if os.getloadavg()[0] > 1:
        print("others use this machine: costs are medians of turns, but do run it twice")
    target = specjax.load(args.target)
    asked, others = chosen_prompts(args.prompts, args.per_category)
    plain = Decoder(target)
    prompts = plain.encode([turn for _, turn in asked])
    print(f"{len(prompts)} prompts of {sorted(map(len, prompts))} tokens", flush=True)
    store = outside_store(plain, [turn for _, turn in others], args.num_tokens)
    study = Study(target, prompts, [group_of(category) for category, _ in asked], store)
    study.measure()
    for temperature in args.temperature or (0.0, 1.0):
        settings = {"max_new_tokens": args.num_tokens, "temperature": temperature}
        print(f"\ntemperature {temperature:g}", flush=True)
        study.show_replays(plain, settings)
        if args.timed:
            study.some(args.timed, args.per_category).show_timed(plain, settings)
    return 0


def chosen_prompts(path: Path, per_category: int) -> tuple[list, list]:
    """(category, chat) of the first prompts of each category, and of the next few."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_category = defaultdict(list)
    for line in lines:
        chat = [{"role": "user", "content": line["turns"][0]}]
        by_category[line["category"]].append((line["category"], chat))
    asked = [one for each in by_category.values() for one in each[:per_category]]
    last = per_category + OUTSIDE
    return asked, [one for each in by_category.values() for one in each[per_category:last]]


def outside_store(plain: Decoder, chats: list, num_tokens: int) -> Datastore:
    """A store of what the target says to other prompts."""
    answers = [plain.generate([chat], max_new_tokens=num_tokens).tokens[0] for chat in chats]
    return build(answers, vocab_size=plain.program.target.vocab_size)


@dataclasses.dataclass
class Study:
    """Prompts, their groups, a store, and what everything costs here."""

    target: Any
    prompts: list[list[int]]
    groups: list[str]
    store: Datastore
    costs: dict[str, RoundCosts] = dataclasses.field(default_factory=dict)

    def measure(self) -> None:
        """Time drafts and passes after a prompt of middling length."""
        prompt = middling(self.prompts)
        drafters = {
            "n-gram": NGram(7),
            "suffix": Suffix(7, store=self.store),
            "retrieval": Retrieval(self.store, 7),
            **{f"early exit after {layers}": EarlyExit(layers, 7) for layers in cases.EXITS},
        }
        print(f"costs over a plain pass: drafting, then passes over {WIDTHS} draft nodes")
        for name, drafter in drafters.items():
            costs = self.costs[name] = RoundCosts.measure(self.target, drafter, prompt)
            unit = "a token" if costs.per_token else "a round"
            passes = " ".join(f"{cost:5.2f}" for cost in costs.passes)
            print(f"{name:26} {costs.draft:6.3f} {unit}   {passes}", flush=True)

    def some(self, timed: int, per_category: int) -> Study:
        """The first ``timed`` prompts of each category, which stand together."""
        kept = [i for i in range(len(self.prompts)) if i % per_category < timed]
        return dataclasses.replace(
            self, prompts=[self.prompts[i] for i in kept], groups=[self.groups[i] for i in kept]
        )

    def costs_of(self, name: str) -> RoundCosts | None:
        """Costs of the drafter of this name; None for what mixes two kinds."""
        if "tree" in name or "then" in name:
            return None
        return next((c for of, c in self.costs.items() if name.startswith(of)), None)

    def show_replays(self, plain: Decoder, settings: Any) -> None:
        """Every drafter and length on the texts that plain decoding gives."""
        texts = [
            prompt + plain.generate([prompt], seed=row, **settings).tokens[0]
            for row, prompt in enumerate(self.prompts)
        ]
        begins = [len(prompt) for prompt in self.prompts]
        scripts = cases.exit_scripts(self.target, texts, begins, settings["temperature"])
        scripts = {layers: jnp.asarray(script) for layers, script in scripts.items()}
        print_header("tokens a pass | predicted speedup")
        run = partial(replay, texts, begins, vocab_size=self.target.vocab_size)
        found: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for length in (*LENGTHS, None):
            drafters = cases.text_drafters(self.store, length or 7)
            for name, drafter in {**drafters, **cases.exit_drafters(scripts, length or 7)}.items():
                costs = self.costs_of(name)
                if costs is None and length is None:
                    continue
                policy = None if length or costs is None else costs.policy()
                rows = run(drafter, policy=policy)
                label = f"{name}, {f'K = {length}' if length else 'adaptive'}"
                speeds = None if costs is None else self.speedups(rows, costs, length)
                self.print_line(label, self.lengths(rows), speeds)
                if speeds:
                    found[name][str(length)] = speeds
        self.show_promises(found)

    def by_group(self, value: Callable[[list[int]], float]) -> list[float]:
        """A value of all prompts together, then of each group's, by their numbers."""
        every = [list(range(len(self.prompts)))]
        every += [[i for i, g in enumerate(self.groups) if g == name] for name in NAMES[1:]]
        return [value(numbers) for numbers in every]

    def lengths(self, rows: list[Metrics]) -> list[float]:
        """E of all and of each group."""

        def pooled(numbers: list[int]) -> float:
            tokens = sum(rows[i].num_tokens for i in numbers)
            return ratio(tokens, sum(rows[i].num_rounds for i in numbers))

        return self.by_group(pooled)

    def speedups(self, rows: list[Metrics], costs: RoundCosts, length: int | None) -> list[float]:
        """Predicted speedup of all and of each group."""

        def pooled(numbers: list[int]) -> float:
            some = [rows[i] for i in numbers if rows[i].num_tokens]
            passes = sum(m.num_tokens / costs.speedup(m, length) for m in some)
            return ratio(sum(m.num_tokens for m in some), passes)

        return self.by_group(pooled)

    def print_line(self, label: str, lengths: list[float], speeds: list[float] | None) -> None:
        """One line of the table."""
        cells = " ".join(f"{x:5.2f}" for x in lengths)
        after = "" if speeds is None else " ".join(f"{x:5.2f}" for x in speeds)
        print(f"{label:38} {cells} | {after}", flush=True)

    def show_promises(self, found: dict[str, dict[str, list[float]]]) -> None:
        """Adaptive against plain, and against the best fixed length of each group."""
        print("\nadaptive: slowest group over plain; over the best fixed length of that group")
        for name, speeds in found.items():
            ours = speeds["None"]
            best = [max(speeds[str(length)][i] for length in LENGTHS) for i in range(len(ours))]
            worst = min(a / max(b, 1.0) for a, b in zip(ours, best, strict=True))
            print(f"{name:38} {min(ours):5.2f}  {worst:5.2f}", flush=True)

    def show_timed(self, plain: Decoder, settings: Any) -> None:
        """Real runs in turns with plain decoding, one warm run of each before."""
        decoders = {"plain": plain}
        for name, drafter in cases.timed_drafters(self.store).items():
            costs = self.costs_of(name)
            adapts = "adaptive" in name and costs is not None
            decoders[name] = Decoder(
                self.target,
                drafter,
                policy=costs.policy() if adapts and costs else None,
                widths=WIDTHS if adapts else (0,),
            )
        # One capacity for all prompts, so that each decoder is compiled once: unused slots cost
        # nothing.
        longest = max(map(len, self.prompts)) + settings["max_new_tokens"]
        seconds: dict[str, list[float]] = defaultdict(list)
        rows: dict[str, list[Metrics]] = defaultdict(list)
        for row, prompt in enumerate(self.prompts):
            for name, decoder in decoders.items():
                call = decoder.prepare([prompt], seed=row, **settings)
                request = padded(call, longest).request
                run = partial(compiled.generate, call.program, request, chunk=decoder.prefill_chunk)
                if row == 0:
                    jax.block_until_ready(run())
                begin = time.perf_counter()
                output = jax.device_get(run()[0])
                seconds[name].append(time.perf_counter() - begin)
                rows[name].append(Metrics.from_stats(output.stats))
        print_header("tokens a pass | measured speedup, prefill included")
        for name, metrics in rows.items():
            self.print_line(name, self.lengths(metrics), self.measured(seconds, name, rows))

    def measured(self, seconds: dict, name: str, rows: dict) -> list[float]:
        """Tokens a second over those of plain decoding, of all and of each group."""

        def rate(which: str, numbers: list[int]) -> float:
            tokens = sum(rows[which][i].num_tokens for i in numbers)
            return ratio(tokens, sum(seconds[which][i] for i in numbers))

        return self.by_group(lambda numbers: ratio(rate(name, numbers), rate("plain", numbers)))


NAMES = ("all", *GROUPS, "chat")


def print_header(what: str) -> None:
    """The line above the table."""
    print(f"{what:38} " + " ".join(name[:5].rjust(5) for name in NAMES), flush=True)


if __name__ == "__main__":
    sys.exit(main())
