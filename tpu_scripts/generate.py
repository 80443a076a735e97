"""python tpu_scripts/generate.py --questions questions.jsonl --output answers.jsonl

Answers every question speculatively, a batch at a time, on whatever device JAX finds: one TPU
chip, one GPU, or the CPU. Expect one JSON object a question in the output, in the order of the
input, and a line a batch such as this one of SmolLM2-135M on two CPU cores (--batch 4):

    4 answers, 128 tokens, 1.12 tokens per pass, 15.3 tokens/s

The first line of each capacity counts compilation too. A question is {"question_id": 81,
"category": "writing", "turns": ["..."]}; its first turn is asked. --prompt "..." asks one thing
instead. For an accelerator: pip install -e ".[tpu]" or ".[cuda]"; nothing else changes,
only weights are then bfloat16 instead of float32. One device is used, or several with --mesh
DATAxMODEL: rows are cut into DATA parts, weights into MODEL parts. For files so long that a run
may be killed, and for several hosts, there is batch_generate.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

import specjax
from specjax.cli.arguments import mesh_shape
from specjax.sharding import make_mesh


def main(argv: Sequence[str] | None = None) -> None:
    """Read questions, decode them in batches, write answers as they are ready."""
    args = parse(argv)
    questions = [as_question(args.prompt)] if args.prompt else read_questions(args.questions)
    size = min(args.batch, len(questions))
    mesh = make_mesh(*args.mesh) if args.mesh else None
    target = specjax.load(args.target, mesh=mesh)
    decoder = specjax.Decoder(target, specjax.drafters.NGram(draft_length=args.draft_length))
    bar = tqdm(total=len(questions), unit="question")
    with bar, args.output.open("w", encoding="utf-8") as file:
        for first in range(0, len(questions), size):
            batch = questions[first : first + size]
            for answer in answers(decoder, batch, size, args, seed=args.seed + first):
                file.write(json.dumps(answer) + "\n")
            file.flush()
            bar.update(len(batch))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--questions", type=Path, help="a file of one JSON object a line")
    asked.add_argument("--prompt")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--mesh", type=mesh_shape, metavar="DATAxMODEL", help="such as 4x2")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.batch < 1:
        parser.error(f"argument --batch: must be at least 1, got {args.batch}")
    return args


def as_question(prompt: str) -> dict[str, Any]:
    """Make a question of a prompt."""
    return {"question_id": 0, "category": "prompt", "turns": [prompt]}


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Read one question a line.

    Raises:
        ValueError: there is no question, or a line is none, by its number.
    """
    questions = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        question = json.loads(line)
        missing = {"question_id", "category", "turns"} - question.keys()
        if missing or not question["turns"]:
            lacking = ", ".join(sorted(missing or {"turns"}))
            raise ValueError(f"{path}, line {number}: a question must have {lacking}")
        questions.append(question)
    if not questions:
        raise ValueError(f"{path}: holds no question")
    return questions


def answers(
    decoder: specjax.Decoder,
    batch: list[dict[str, Any]],
    size: int,
    args: argparse.Namespace,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Decode one batch, filled up to ``size`` rows, so that no other batch size is compiled."""
    filled = batch + [batch[-1]] * (size - len(batch))
    result = decoder.generate(
        [[{"role": "user", "content": question["turns"][0]}] for question in filled],
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=seed,
    )
    assert result.texts is not None  # chat messages went through a tokenizer
    report(result, len(batch))
    for row, question in enumerate(batch):
        yield {
            "question_id": question["question_id"],
            "category": question["category"],
            "text": result.texts[row],
            "tokens": result.tokens[row],
            "finish_reason": result.finish_reasons[row],
            "seed": result.seeds[row],
            "metrics": result.row_metrics[row].to_dict(),
        }


def report(result: specjax.Result, num: int) -> None:
    """Print what a batch came to, without the rows that only filled it up."""
    tokens = sum(metrics.num_tokens for metrics in result.row_metrics[:num])
    rounds = sum(metrics.num_rounds for metrics in result.row_metrics[:num])
    tqdm.write(
        f"{num} answers, {tokens} tokens, {tokens / max(rounds, 1):.2f} tokens per pass, "
        f"{tokens / result.metrics.seconds:.1f} tokens/s"
    )


if __name__ == "__main__":
    main()
