"""What can be asked for on the command line; imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
from typing import NoReturn

from specjax import __version__

DRAFT_LENGTH = 4


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def build_parser() -> Parser:
    """Build the parser of ``specjax`` and its commands."""
    parser = Parser(prog="specjax", description="Speculative decoding in JAX.")
    parser.add_argument("--version", action="version", version=f"specjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    generate = commands.add_parser(
        "generate",
        help="answer a prompt",
        description="Answer a prompt speculatively. The answer goes to standard output, "
        "everything about it to standard error.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    generate.add_argument("prompt", metavar="PROMPT", help="the text, or - for standard input")
    _add_model_arguments(generate)
    _add_sampling_arguments(generate)
    _add_output_arguments(generate)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what decodes")
    add = group.add_argument
    add("--target", metavar="MODEL", default="smollm2-135m-instruct",
        help="alias, folder, .gguf file or Hub id")  # fmt: skip
    add("--drafter", metavar="DRAFTER", default="ngram",
        help="ngram, none, or a model with the target's tokenizer")  # fmt: skip
    add("--draft-length", metavar="K", type=int, default=argparse.SUPPRESS,
        help=f"tokens a draft (default: {DRAFT_LENGTH})")  # fmt: skip
    add("--verifier", choices=["token", "block", "coupled"], default=argparse.SUPPRESS,
        help="(default: coupled for ngram, block for a model)")  # fmt: skip
    add("--raw", action="store_true", help="leave the chat template out")


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it samples")
    add = group.add_argument
    add("--max-new-tokens", metavar="N", type=int, default=128, help="tokens to add at most")
    add("--temperature", metavar="T", type=float, default=0.0, help="0 is greedy")
    add("--top-k", metavar="K", type=int, default=0, help="keep the K likeliest; 0 keeps all")
    add("--top-p", metavar="P", type=float, default=1.0, help="keep the likeliest of this mass")
    add("--min-p", metavar="P", type=float, default=0.0,
        help="keep tokens this fraction as likely as the likeliest")  # fmt: skip
    add("--seed", metavar="S", type=int, default=argparse.SUPPRESS, help="(default: entropy)")


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is shown")
    group.add_argument(
        "--compare", action="store_true", help="then time it against plain decoding, in turns"
    )
    one_of = group.add_mutually_exclusive_group()
    one_of.add_argument("--stream", action="store_true", help="show the text as it is made")
    one_of.add_argument("--trace", action="store_true", help="show every round")
    one_of.add_argument("--json", action="store_true", help="one JSON object and nothing else")
