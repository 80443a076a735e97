"""What can be asked for on the command line; imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NoReturn

from specjax import __version__
from specjax.cli.bench_arguments import add_bench

DRAFT_LENGTH = 4


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def mesh_shape(text: str) -> tuple[int, int]:
    """Read DATAxMODEL, such as 4x2.

    >>> mesh_shape("4x2")
    (4, 2)

    Raises:
        ArgumentTypeError: it is not two numbers.
    """
    data, _, model = text.partition("x")
    if not (data.isdecimal() and model.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be DATAxMODEL, such as 4x2, got {text!r}")
    return int(data), int(model)


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
    check = commands.add_parser(
        "check",
        help="check that a target and a drafter go together exactly",
        description="Check a target and a drafter: identities, caches, acceptance, and the law of "
        "what comes out. The report goes to standard output; the status is 1 if a check failed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_check_arguments(check)
    convert = commands.add_parser(
        "convert",
        help="write a model in another form",
        description="Write a model and its tokenizer in another form. What was written goes to "
        "standard error, or as JSON to standard output.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_convert_arguments(convert)
    _add_datastore(commands)
    _add_plan(commands)
    add_bench(commands)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what decodes")
    add = group.add_argument
    add("--target", metavar="MODEL", default="smollm2-135m-instruct",
        help="alias, folder, .gguf file or Hub id")  # fmt: skip
    add("--drafter", metavar="DRAFTER", default="ngram",
        help="none, ngram, suffix, suffix:STORE, retrieval:STORE, lookahead, early-exit:LAYERS, or "
        "a model with the target's tokenizer; of several with commas, the first "
        "that has a draft")  # fmt: skip
    add("--draft-length", metavar="K", type=int, default=argparse.SUPPRESS,
        help=f"tokens a draft (default: {DRAFT_LENGTH})")  # fmt: skip
    add("--adaptive", action="store_true",
        help="measure costs here, and draft as long as it pays, up to K")  # fmt: skip
    add("--verifier", choices=["token", "block", "coupled", "typical"], default=argparse.SUPPRESS,
        help="typical is lossy (default: coupled for copied text, block for a model)")  # fmt: skip
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
    group = parser.add_argument_group("what else shapes the answer (default: nothing)")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--stop", metavar="TEXT", action="append",
        help="the answer ends before this text; once for each")  # fmt: skip
    add("--min-new-tokens", metavar="N", type=int, help="do not end before so many tokens")
    add("--repetition-penalty", metavar="X", type=float,
        help="make tokens of prompt and answer less likely; 1 is off")  # fmt: skip
    add("--presence-penalty", metavar="X", type=float, help="the same by subtraction, once")
    add("--frequency-penalty", metavar="X", type=float, help="the same for each occurrence")
    add("--no-repeat-ngram-size", metavar="N", type=int, help="never repeat N tokens; 0 is off")
    add("--logit-bias", metavar="ID=X", type=bias, action="append",
        help="add X to the logit of a token; once for each")  # fmt: skip
    one_of = group.add_mutually_exclusive_group()
    one_of.add_argument("--regex", metavar="PATTERN", default=argparse.SUPPRESS,
        help="the answer matches this regular expression")  # fmt: skip
    one_of.add_argument("--json-schema", metavar="FILE", default=argparse.SUPPRESS,
        help="the answer is JSON that validates against this schema")  # fmt: skip


def bias(argument: str) -> tuple[int, float]:
    """Read a token id and what is added to its logit.

    >>> bias("17=-2.5")
    (17, -2.5)
    """
    token, _, amount = argument.partition("=")
    return int(token), float(amount)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is shown")
    group.add_argument(
        "--compare", action="store_true", help="then time it against plain decoding, in turns"
    )
    group.add_argument(
        "--logprobs", metavar="N", type=int, default=argparse.SUPPRESS,
        help="with --json: log-probabilities, with N alternatives a token",
    )  # fmt: skip
    one_of = group.add_mutually_exclusive_group()
    one_of.add_argument("--stream", action="store_true", help="show the text as it is made")
    one_of.add_argument("--trace", action="store_true", help="show every round")
    one_of.add_argument("--json", action="store_true", help="one JSON object and nothing else")


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", metavar="MODEL", default="smollm2-135m-instruct",
        help="alias, folder, .gguf file or Hub id")  # fmt: skip
    add("--drafter", metavar="DRAFTER", default="ngram",
        help="as for generate, or module:attribute, a drafter or "
        "what makes one of a target")  # fmt: skip
    add("--draft-length", metavar="K", type=int, default=argparse.SUPPRESS,
        help=f"tokens a draft (default: {DRAFT_LENGTH})")  # fmt: skip
    add("--verifier", metavar="VERIFIER", default=argparse.SUPPRESS,
        help="token, block, coupled, or module:attribute (default: as generate)")  # fmt: skip
    add("--prompt", metavar="TEXT", action="append", default=argparse.SUPPRESS,
        help="text to go on from, without a chat template; once for each (default: two texts that "
        "quote themselves)")  # fmt: skip
    add("--temperature", metavar="T", type=float, default=1.0,
        help="above 0; greedy is checked too")  # fmt: skip
    add("--top-k", metavar="K", type=int, default=0, help="keep the K likeliest; 0 keeps all")
    add("--top-p", metavar="P", type=float, default=1.0, help="keep the likeliest of this mass")
    add("--min-p", metavar="P", type=float, default=0.0,
        help="keep tokens this fraction as likely as the likeliest")  # fmt: skip
    add("--num-tokens", metavar="N", type=int, default=40, help="tokens a row")
    add("--keys", metavar="N", type=int, default=512, help="draws of the first two tokens")
    add("--tolerance", metavar="X", type=float, default=1e-4,
        help="logits closer than this may change places; bfloat16 needs about 0.1")  # fmt: skip
    add("--seed", metavar="S", type=int, default=0, help="of the first row and key")
    add("--only", metavar="CHECK", action="append", default=argparse.SUPPRESS,
        help="a check to run; once for each (default: all)")  # fmt: skip
    add("--json", action="store_true", help="one JSON object and nothing else")


def _add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="alias, folder, .gguf file or Hub id")
    add("folder", metavar="FOLDER", help="where to; new or empty")
    add("--to", choices=["safetensors", "orbax"], default="safetensors",
        help="safetensors for transformers, orbax for meshes and int8")  # fmt: skip
    add("--dtype", choices=["float32", "bfloat16", "float16"], default=argparse.SUPPRESS,
        help="of the weights (default: the widest in the source)")  # fmt: skip
    add("--quantize", choices=["int8"], default=argparse.SUPPRESS,
        help="with --to orbax: keep kernels in eight bits (default: no)")  # fmt: skip
    add("--json", action="store_true", help="one JSON object and nothing else")


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="say what a target and a drafter need and bring on a machine",
        description="Compile the whole program for a TPU that need not be at hand, without any "
        "weights, and say whether it fits, what its passes cost, and what speculation brings. For "
        "a GPU all is predicted. The status is 1 if it does not fit.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    group = parser.add_argument_group("what decodes where")
    add = group.add_argument
    add("--target", metavar="MODEL", required=True, default=argparse.SUPPRESS,
        help="name of a public model, a config.json, or a folder with one")  # fmt: skip
    add("--drafter", metavar="DRAFTER", default="ngram",
        help="none, ngram, or such a model")  # fmt: skip
    add("--draft-length", metavar="K", type=int, default=argparse.SUPPRESS,
        help="tokens a draft (default: 5)")  # fmt: skip
    add("--topology", metavar="CHIP:SHAPE", required=True, default=argparse.SUPPRESS,
        help="v4, v5e, v5p, v6e, a100, h100 or h200, and the devices: v5e:4x4, h200:8")  # fmt: skip
    add("--mesh", metavar="DATAxMODEL", default=argparse.SUPPRESS,
        help="devices that rows and weights are cut along (default: all along model)")  # fmt: skip
    add("--replicate-drafter", action="store_true", help="a whole draft model on every device")
    _add_plan_sizes(parser)


def _add_plan_sizes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for what")
    add = group.add_argument
    add("--batch", metavar="B", type=int, default=1, help="rows")
    add("--context", metavar="N", type=int, default=4096, help="tokens a row, prompt and output")
    add("--prompt", metavar="N", type=int, default=argparse.SUPPRESS,
        help="of which so many are prompt (default: half)")  # fmt: skip
    add("--dtype", choices=["bfloat16", "float32", "float16"], default="bfloat16",
        help="of weights and caches")  # fmt: skip
    group = parser.add_argument_group("what is shown")
    add = group.add_argument
    add("--no-compile", action="store_true", help="predict only, in seconds")
    add("--json", action="store_true", help="one JSON object and nothing else")
    add("--png", metavar="FILE", default=argparse.SUPPRESS, help="draw the speedups into FILE")


def _add_datastore(commands: Any) -> None:
    what = "build a store of texts to draft from"
    datastore = commands.add_parser("datastore", help=what, description=f"{what.capitalize()}.")
    actions = datastore.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser(
        "build",
        help="from files of text or token ids",
        description="Build a store from files. What was written goes to standard error, or as "
        "JSON to standard output.",
    )
    add = build.add_argument
    add("out", metavar="OUT", help="the file to write, a .safetensors")
    add("files", metavar="FILE", nargs="+",
        help=".txt (a document), .jsonl (text or turns), .npy (ids; -1 ends one)")  # fmt: skip
    add("--tokenizer", metavar="MODEL", required=True,
        help="the target: alias, folder, .gguf file or Hub id")  # fmt: skip
    add("--sorted-length", metavar="N", type=int, default=16,
        help="the longest match that can be looked for (default: 16)")  # fmt: skip
    add("--json", action="store_true", help="one JSON object and nothing else")
