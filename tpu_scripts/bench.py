"""python tpu_scripts/bench.py --random llama-3.1-8b --batch 16 --synthetic-acceptance 0.8

Measures plain against speculative decoding on whatever devices JAX finds: passes, drafts, and
whole calls in turns (A B A B ...), after a run of each that compiles. --random takes the name of a
public configuration (as ``specjax plan`` does) or a config.json, and makes weights on the devices
that are to hold them; --target loads a model instead. --drafter is ngram or a draft model, named
likewise. With --synthetic-acceptance A drafts are the target's own tokens, each wrong with
probability 1 - A, so that the speedup at a set acceptance can be held against the plan's.

Hardware: one TPU chip, one GPU or a CPU; several with --mesh DATAxMODEL, which cuts rows into DATA
parts and the weights into MODEL parts. On two CPU cores,

    python tpu_scripts/bench.py --random smollm2-135m --synthetic-acceptance 0.8

ends below its progress bar with figures like these, in four minutes on a machine that was busy with
other work too (v is about 1.6 on an idle one):

    device          cpu, mesh 1 x 1, 1 rows
    plain                21.6 tokens/s, prefill left out
    speculative          22.1 tokens/s, 1.02 times plain
    tokens a pass        3.05 a row (E), 3.36 expected of the acceptance asked for
    pass cost            3.12 plain steps over 5 positions (v)
    draft cost          0.000 plain steps a draft token (c)
    predicted            0.98 times plain: E / (4 c + v)
    plain step          67.33 ms, 8.1 GB/s a device

On a known chip it also says what share of the memory's bandwidth a plain pass reaches, and what
the plan predicts. It has been run on CPUs only yet.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import specjax
from specjax import compiled, drafters
from specjax.bench.costs import NUM, Costs, time_passes
from specjax.bench.random_model import random_model
from specjax.bench.synthetic import at_rate
from specjax.bench.timing import interleaved_medians
from specjax.cli.arguments import mesh_shape
from specjax.metrics import expected_acceptance_length
from specjax.models import DecoderLM
from specjax.settings import Settings
from specjax.sharding import REPLICATED, RULES, Layout, make_mesh

CHIPS = {"h200": "H200", "h100": "H100", "a100": "A100"}
CHIPS |= {"v6e": "v6 lite", "v5e": "v5 lite", "v5p": "v5", "v4": "v4"}
"""Chips that ``specjax plan`` knows, and what is in their devices' kinds; the first that fits."""


def main(argv: Sequence[str] | None = None) -> None:
    """Make the models, measure, report."""
    args = parse(argv)
    layout = Layout(make_mesh(*args.mesh), RULES) if args.mesh else None
    with tqdm(total=3 + 3 * (args.repeats + 1), unit="step", disable=args.json) as bar:
        bar.set_description("making the target")
        target = model_of(args.random, args.target, layout, args.dtype)
        bar.update()
        plain, speculative, prompts = decoders(args, target, layout)
        bar.update()
        found = measure(args, plain, speculative, prompts, bar)
    found |= planned(args, speculative, found)
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines(found)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", default="smollm2-135m-instruct", help="an alias, a folder or a file")
    add("--random", metavar="CONFIG", help="random weights of a public model or a config.json")
    add("--drafter", default="ngram", help="ngram, or a draft model; with --random its CONFIG")
    add("--replicate-drafter", action="store_true", help="a whole draft model on every device")
    add("--draft-length", metavar="K", type=int, default=4)
    add("--synthetic-acceptance", metavar="A", type=float, help="instead of a drafter, 0 to 1")
    add("--mesh", type=mesh_shape, metavar="DATAxMODEL", help="such as 1x8")
    add("--batch", type=int, default=1)
    add("--prompt", help="a text for every row; default: random tokens, others in each row")
    add("--prompt-length", type=int, default=128, help="of random prompts")
    add("--max-new-tokens", type=int, default=128)
    add("--dtype", choices=["float32", "bfloat16"], default=None)
    add("--repeats", type=int, default=5, help="timed turns")
    add("--chip", choices=CHIPS, help="which it is; default: as the device says")
    add("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("draft_length", "batch", "prompt_length", "max_new_tokens", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"argument --{name.replace('_', '-')}: must be at least 1")
    if args.synthetic_acceptance is not None and args.prompt is not None:
        parser.error("argument --synthetic-acceptance: makes prompts of its own; drop --prompt")
    if args.batch % (args.mesh or (1,))[0]:
        parser.error(f"argument --batch: {args.batch} rows cannot be cut {args.mesh[0]} ways")
    if args.dtype is None:
        args.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    args.chip = args.chip or chip_of(jax.devices()[0].device_kind)
    return args


def chip_of(kind: str) -> str | None:
    """What ``specjax plan`` calls a device, None where it does not know it."""
    return next((name for name, part in CHIPS.items() if part in kind), None)


def model_of(
    config: str | None, name: str, layout: Layout | None, dtype: str, seed: int = 0
) -> DecoderLM:
    """Load a model, or make one of random weights, on one device or on the mesh."""
    if config is not None:
        from specjax.plan.public import find_config

        return random_model(find_config(config), layout, dtype, seed)
    on_mesh = {} if layout is None else {"mesh": layout.mesh, "rules": dict(layout.rules)}
    return specjax.load(name, dtype=jnp.dtype(dtype), **on_mesh)


Prompts = list[list[int]]
Figures = dict[str, Any]


def decoders(
    args: argparse.Namespace, target: DecoderLM, layout: Layout | None
) -> tuple[specjax.Decoder, specjax.Decoder, Prompts]:
    """Plain and speculative decoding of the same target, and what to decode."""
    plain, prompts = specjax.Decoder(target), random_prompts(args, target.vocab_size)
    if args.synthetic_acceptance is not None:
        lengths = {"draft_length": args.draft_length, "max_new_tokens": args.max_new_tokens}
        return *at_rate(target, prompts, args.synthetic_acceptance, **lengths), prompts
    if args.drafter == "ngram":
        drafter: Any = drafters.NGram(args.draft_length)
    else:
        rules = REPLICATED if args.replicate_drafter else RULES
        draft_layout = None if layout is None else Layout(layout.mesh, rules)
        config = None if args.random is None else args.drafter
        model = model_of(config, args.drafter, draft_layout, args.dtype, seed=1)
        drafter = drafters.DraftModel(model, args.draft_length)
    if args.prompt is not None:
        prompts = plain.encode([args.prompt] * args.batch)
    return plain, specjax.Decoder(target, drafter), prompts


def random_prompts(args: argparse.Namespace, vocab_size: int) -> Prompts:
    """Prompts of random tokens, each beginning with the number of its row."""
    tokens = np.random.default_rng(0).integers(vocab_size, size=(args.batch, args.prompt_length))
    tokens[:, 0] = np.arange(args.batch)
    return tokens.tolist()


def measure(
    args: argparse.Namespace,
    plain: specjax.Decoder,
    speculative: specjax.Decoder,
    prompts: Prompts,
    bar: tqdm,
) -> Figures:
    """Time plain and speculative calls in turns, then passes and drafts."""
    settings: Settings = {"max_new_tokens": args.max_new_tokens, "stop_token_ids": [], "seed": 0}
    results: dict[str, specjax.Result] = {}
    call = plain.prepare(prompts, **settings)
    request = dataclasses.replace(call.request, limit=call.request.length + 1)

    def first_token() -> None:
        bar.set_description("first token")
        # The very program of the calls below, which is compiled once.
        arguments = {"chunk": plain.prefill_chunk, "keep_state": False}
        jax.block_until_ready(compiled.generate(call.program, request, **arguments))
        bar.update()

    def run(name: str, decoder: specjax.Decoder) -> None:
        bar.set_description(name)
        results[name] = decoder.generate(prompts, **settings)
        bar.update()

    first, *seconds = interleaved_medians(
        [first_token, partial(run, "plain", plain), partial(run, "speculative", speculative)],
        args.repeats,
    )
    bar.set_description("passes")
    drafts, (one, wide) = time_passes(speculative, prompts, (0, None), args.repeats, settings)
    bar.update()
    costs = Costs(args.draft_length, drafts / one / args.draft_length, wide / one)
    step, length = one / NUM, len(prompts[0])
    prefill = max(first - step, 0.0)
    found = {"prompt_length": length, "prefill_seconds": prefill, "plain_step_seconds": step}
    return found | figures(args, [x - prefill for x in seconds], results, costs)


def figures(
    args: argparse.Namespace,
    seconds: Sequence[float],
    results: dict[str, specjax.Result],
    costs: Costs,
) -> Figures:
    """What was measured, by name; the seconds of both calls are without prefill."""
    plain, speculative = seconds
    tokens = args.batch * args.max_new_tokens
    length = results["speculative"].metrics.mean_acceptance_length
    rates = [args.synthetic_acceptance] * args.draft_length
    asked = None if args.synthetic_acceptance is None else expected_acceptance_length(rates)
    return {
        "device": jax.devices()[0].device_kind,
        "chip": args.chip,
        "mesh": args.mesh or (1, 1),
        "batch": args.batch,
        "draft_length": args.draft_length,
        "plain_tokens_per_second": tokens / plain,
        "speculative_tokens_per_second": tokens / speculative,
        "speedup": plain / speculative,
        "tokens_per_pass": length,
        "asked_tokens_per_pass": asked,
        "tokens_equal": results["plain"].tokens == results["speculative"].tokens,
        "pass_cost": costs.pass_cost,
        "draft_cost": costs.draft_cost,
        "predicted_speedup": costs.speedup(length),
    }


def planned(args: argparse.Namespace, decoder: specjax.Decoder, found: Figures) -> Figures:
    """How fast a plain pass reads, and what the plan for this chip says of all that."""
    from specjax.plan.predict import round_costs, target_pass
    from specjax.plan.setup import Setup

    # Plans take a model's shape as it is before key heads are copied for a mesh.
    shape = partial(dataclasses.replace, kv_copies=1)
    draft_model = getattr(decoder.program.drafter, "model", None)
    # Bytes are the same on any chip, so an unknown one may be taken for another to count them.
    setup = Setup(
        shape(decoder.program.target.config),
        f"{args.chip or 'v5e'}:{math.prod(found['mesh'])}",
        None if draft_model is None else shape(draft_model.config),
        draft_length=args.draft_length,
        batch=args.batch,
        context=found["prompt_length"] + args.max_new_tokens,
        prompt=found["prompt_length"],
        dtype=args.dtype,
        mesh=found["mesh"],
        placement="replicated" if args.replicate_drafter else "sharded",
    )
    # Passes were timed after the prompts.
    plain = target_pass(setup, 1, found["prompt_length"])
    rate = plain.cost.bytes / found["plain_step_seconds"]
    said = {"plain_step_bytes": plain.cost.bytes, "bytes_per_second": rate}
    if args.chip is None:
        return said
    (costs,) = round_costs(setup, [args.draft_length])
    return said | {
        "bandwidth_share": rate / setup.machine.chip.bandwidth,
        "planned_plain_step_seconds": plain.seconds,
        "planned_speedup": costs.speedup(found["tokens_per_pass"]),
    }


def lines(found: Figures) -> list[str]:
    """The figures in words."""
    length, step = found["draft_length"], 1e3 * found["plain_step_seconds"]
    asked, share = found["asked_tokens_per_pass"], found.get("bandwidth_share")
    mesh = " x ".join(map(str, found["mesh"]))
    said = [
        f"device          {found['device']}, mesh {mesh}, {found['batch']} rows",
        f"plain           {found['plain_tokens_per_second']:9.1f} tokens/s, prefill left out",
        f"speculative     {found['speculative_tokens_per_second']:9.1f} tokens/s, "
        f"{found['speedup']:.2f} times plain",
        f"tokens a pass   {found['tokens_per_pass']:9.2f} a row (E)"
        + ("" if asked is None else f", {asked:.2f} expected of the acceptance asked for"),
        f"pass cost       {found['pass_cost']:9.2f} plain steps over {length + 1} positions (v)",
        f"draft cost      {found['draft_cost']:9.3f} plain steps a draft token (c)",
        f"predicted       {found['predicted_speedup']:9.2f} times plain: E / ({length} c + v)",
        f"plain step      {step:9.2f} ms, {found['bytes_per_second'] / 1e9:.1f} GB/s a device"
        + ("" if share is None else f", {share:.0%} of the chip's memory bandwidth"),
    ]
    if share is not None:
        step = 1e3 * found["planned_plain_step_seconds"]
        said.append(
            f"plan            {found['planned_speedup']:9.2f} times, at {step:.2f} ms a step"
        )
    return said if found["tokens_equal"] else [*said, "tokens          DIFFER, as rounding does"]


if __name__ == "__main__":
    main()
