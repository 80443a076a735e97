"""python tpu_scripts/batch_generate.py --input prompts.jsonl --output answers.jsonl

Answers a file of prompts on all devices of all hosts. A line of the input is {"prompt": ...}, with
text, token ids or chat messages, or a question as generate.py takes them. Each gets one line of the
output, in order: {"index": 0, "text": "...", "tokens": [...], "finish_reason": "length", "seed": 0,
...}, or {"index": 0, "error": "..."} where the prompt cannot be decoded.

Killed at any moment and started again with the same command, it goes on where it was: no line is
lost or repeated, and all are as if nothing had happened. What made the output is beside it in
answers.jsonl.settings.json, and a start with other settings is refused.

Hardware: one TPU chip, one GPU or a CPU; several with --mesh DATAxMODEL, which cuts rows into DATA
parts and the weights into MODEL parts (default: a whole model on every device). Several hosts:
tpu_scripts/launch.md.

On two CPU cores with SmolLM2-135M and --max-new-tokens 64, eight short questions end with

    8 lines, 0 errors: 418 tokens in 330 passes of a row (1.27 tokens a pass)

below a progress bar, whose first step counts compilation too, as does the first of each length of
prompts. It has not been run on a TPU yet.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import specjax
from specjax import distributed
from specjax.cli.arguments import mesh_shape
from specjax.io.resumable import opened
from specjax.sharding import REPLICATED, make_mesh

NAMES = ("id", "question_id", "category")
"""What an answer takes over from its line of the input."""


def main(argv: Sequence[str] | None = None) -> None:
    """Decode what the output lacks yet; every host runs this."""
    args = parse(argv)
    with distributed.job(args.coordinator, args.num_processes, args.process_id):
        prompts, settings = read_prompts(args.input), settings_of(args)
        last = args.seed + len(prompts) + args.batch
        if args.seed < 0 or last > 2**32:
            raise ValueError(f"--seed: must leave every line one in 0..2**32 - 1, got {args.seed}")
        require_same(settings)
        writes = jax.process_index() == 0
        with opened(args.output, settings) if writes else contextlib.nullcontext() as output:
            done = int(distributed.from_first(np.int32(output.num_lines if output else 0)))
            bar = tqdm(total=len(prompts), initial=done, unit="line", disable=not writes)
            for answers in decode(args, prompts, done):
                if output is not None:
                    output.append(answers)
                bar.update(len(answers))
            bar.close()
        if writes:
            report(args.output)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--input", type=Path, required=True)
    add("--output", type=Path, required=True)
    add("--target", default="smollm2-135m-instruct", help="an alias, a folder or a file")
    add("--drafter", default="ngram", help="ngram, or a draft model's alias, folder or file")
    add("--draft-length", type=int, default=4)
    add("--batch", type=positive, default=8, help="lines decoded together, on all hosts")
    add("--mesh", type=mesh_shape, metavar="DATAxMODEL", help="such as 4x2, for 8 devices")
    add("--max-new-tokens", type=positive, default=128)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0, help="of the first line; the next has the next")
    add("--coordinator", help="auto on a Cloud TPU slice, else host:port of process 0")
    add("--num-processes", type=int)
    add("--process-id", type=int)
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """Read a number of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read every line as the names it came with and its ``prompt``.

    Raises:
        ValueError: there is no line, or one holds no prompt, by its number.
    """
    prompts = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = json.loads(text)
            prompt = line["prompt"] if "prompt" in line else question(line["turns"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: must be a JSON object with a prompt, or with turns"
            ) from error
        prompts.append({"prompt": prompt, **{n: line[n] for n in NAMES if n in line}})
    if not prompts:
        raise ValueError(f"{path}: holds no line")
    return prompts


def question(text: str) -> list[dict[str, str]]:
    """Ask text as a user does."""
    return [{"role": "user", "content": text}]


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that the output depends on, for a file beside it."""
    own = "target drafter draft_length batch max_new_tokens temperature seed"
    return {
        "input_sha256": hashlib.sha256(args.input.read_bytes()).hexdigest(),
        **{name: getattr(args, name) for name in own.split()},
        "mesh": list(shape_of(args)),
        "platform": jax.default_backend(),
        "jax": jax.__version__,
        "specjax": specjax.__version__,
    }


def shape_of(args: argparse.Namespace) -> tuple[int, int]:
    """Rows and columns of the mesh: every device has a whole model, if nothing else is said."""
    return (jax.device_count(), 1) if args.mesh is None else args.mesh


def require_same(settings: dict[str, Any]) -> None:
    """Refuse to decode with hosts that were told different things."""
    digest = hashlib.sha256(json.dumps(settings).encode()).digest()
    mine = np.frombuffer(digest, np.uint8).astype(np.int32)
    if (distributed.from_first(mine) != mine).any():
        raise ValueError(
            f"--input or another argument differs from host 0's; here they are {settings}"
        )


def decode(
    args: argparse.Namespace, prompts: list[dict[str, Any]], done: int
) -> Iterator[list[dict[str, Any]]]:
    """Answers batch by batch, without the first ``done``.

    Batches always begin at multiples of their size, so that a line is decoded among the same
    neighbours by the same program, however often the script was started.
    """
    if done == len(prompts):
        return
    decoder, size = build(args), min(args.batch, len(prompts))
    for first in range(done - done % size, len(prompts), size):
        answers = decode_batch(args, decoder, prompts[first : first + size], first, size)
        yield answers[max(done - first, 0) :]


def build(args: argparse.Namespace) -> specjax.Decoder:
    """Load the models onto the mesh."""
    shape = shape_of(args)
    if jax.process_count() > 1 and shape[0] * shape[1] != jax.device_count():
        raise ValueError(
            f"--mesh: {shape[0]}x{shape[1]} leaves out some of the {jax.device_count()} devices, "
            "but every host takes part; use all"
        )
    mesh = None if shape == (1, 1) else make_mesh(*shape)
    target = specjax.load(args.target, mesh=mesh)
    if args.drafter == "ngram":
        return specjax.Decoder(target, specjax.drafters.NGram(args.draft_length))
    model = specjax.load(args.drafter, mesh=mesh, rules=REPLICATED)
    return specjax.Decoder(target, specjax.drafters.DraftModel(model, args.draft_length))


def decode_batch(
    args: argparse.Namespace,
    decoder: specjax.Decoder,
    batch: list[dict[str, Any]],
    first: int,
    size: int,
) -> list[dict[str, Any]]:
    """Decode one batch in ``size`` rows; each host tokenizes its share of them."""
    own = batch[distributed.host_rows(len(batch))]
    rows, _ = distributed.share([encode(args, decoder, line)[0] for line in own])
    rows += [[]] * (size - len(rows))
    result = decoder.generate(
        [row or [0] for row in rows],
        max_new_tokens=[args.max_new_tokens if row else 0 for row in rows],
        temperature=args.temperature,
        seed=[args.seed + first + row for row in range(size)],
    )
    answers = []
    for row, line in enumerate(batch):
        said = answer(result, row) if rows[row] else {"error": encode(args, decoder, line)[1]}
        names = {name: line[name] for name in NAMES if name in line}
        answers.append({"index": first + row, **names, **said})
    return answers


def encode(
    args: argparse.Namespace, decoder: specjax.Decoder, line: dict[str, Any]
) -> tuple[list[int], str]:
    """Token ids of a prompt, or no ids and what is wrong with it: one line must not end a job."""
    try:
        (ids,) = decoder.encode([line["prompt"]])
    except (ValueError, TypeError) as error:
        return [], str(error)
    room = decoder.max_length
    if room is not None and len(ids) + args.max_new_tokens > room:
        return [], f"{len(ids)} tokens and {args.max_new_tokens} new ones are more than {room}"
    return ids, ""


def answer(result: specjax.Result, row: int) -> dict[str, Any]:
    """What came of one row; nothing in it depends on time."""
    return {
        "text": None if result.texts is None else result.texts[row],
        "tokens": result.tokens[row],
        "finish_reason": result.finish_reasons[row],
        "seed": result.seeds[row],
        "num_rounds": result.row_metrics[row].num_rounds,
    }


def report(path: Path) -> None:
    """Print what the whole output comes to."""
    with path.open(encoding="utf-8") as file:
        answers = [json.loads(line) for line in file]
    good = [a for a in answers if "tokens" in a]
    tokens, rounds = sum(len(a["tokens"]) for a in good), sum(a["num_rounds"] for a in good)
    print(
        f"{len(answers)} lines, {len(answers) - len(good)} errors: {tokens} tokens in {rounds} "
        f"passes of a row ({tokens / max(rounds, 1):.2f} tokens a pass)"
    )


if __name__ == "__main__":
    main()
