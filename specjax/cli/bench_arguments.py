"""What ``specjax bench`` can be asked for; imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any


def add_bench(commands: Any) -> None:
    """Add the command to those of ``specjax``."""
    parser = commands.add_parser(
        "bench",
        help="measure drafters against plain decoding",
        description="Decode questions plainly and with drafters, in turns, after all programs are "
        "compiled. Tables by category go to standard output, with the model of the speed beside "
        "the measurement. Options with several values cross: every drafter with every length, "
        "temperature and batch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "prompts", metavar="PROMPTS", nargs="?", default=argparse.SUPPRESS,
        help="a .jsonl with question_id, category and turns",
    )  # fmt: skip
    _add_questions(parser)
    _add_contestants(parser)
    _add_conditions(parser)
    group = parser.add_argument_group("what is shown (default: tables)")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--json", metavar="FILE", help="write every record, with versions and settings")
    add("--png", metavar="FOLDER", help="draw into this folder")
    group.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    several: Any = {"nargs": "+", "action": "extend"}
    add("--workload", metavar="NAME", **several,
        help="questions made here: editing, code, json, long-context, classification, "
        "open-writing, or all")  # fmt: skip
    add("--categories", metavar="NAME", **several, help="keep these alone")
    add("--per-category", metavar="N", type=int, help="keep the first N of each")


def _add_contestants(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who answers, beside plain decoding")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    several: Any = {"nargs": "+", "action": "extend"}
    group.add_argument("--target", metavar="MODEL", default="smollm2-135m-instruct",
        help="alias, folder, .gguf file or Hub id")  # fmt: skip
    add("--drafter", metavar="DRAFTER", **several, help="as for generate (default: ngram)")
    add("--draft-length", metavar="K", type=int, **several, help="tokens a draft (default: 4)")
    add("--verifier", choices=["token", "block", "coupled", "typical"], **several,
        help="typical is lossy (default: coupled for copied text, block for a model)")  # fmt: skip
    group.add_argument("--adaptive", action="store_true",
        help="each drafter also with drafts as long as pays here, up to K")  # fmt: skip
    add("--peer", choices=["transformers", "llama-cpp"], **several,
        help="another program with the same weights, plain and with prompt lookup; where one "
        "greedy answer is asked for")  # fmt: skip
    add("--threads", metavar="N", type=int, help="of peers (default: all cores)")


def _add_conditions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    several: Any = {"nargs": "+", "action": "extend"}
    add("--temperature", metavar="T", type=float, **several,
        help="0 is greedy (default: each question's own, or 0)")  # fmt: skip
    add("--batch", metavar="B", type=int, **several, help="rows at a time (default: 1)")
    add("--max-new-tokens", metavar="N", type=int,
        help="tokens an answer at most (default: each question's own, or 128)")  # fmt: skip
    group.add_argument("--repeats", metavar="N", type=int, default=3, help="timed turns")
    group.add_argument("--seed", metavar="S", type=int, default=0,
        help="of the first question, and of workloads")  # fmt: skip
