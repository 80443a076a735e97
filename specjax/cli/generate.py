"""``specjax generate``: from arguments to an answer on standard output."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from specjax import grammar, rng
from specjax.api import Decoder
from specjax.bench import adapt, compare
from specjax.cli.arguments import DRAFT_LENGTH
from specjax.cli.comparison import comparison_dict, comparison_lines
from specjax.cli.drafters import drafter_of
from specjax.cli.trace import traced
from specjax.io import load
from specjax.prompts import Prompt
from specjax.result import Result
from specjax.settings import Settings

NOTHING: Any = {"max_new_tokens": 0}
"""Settings of a call that compiles and decodes nothing."""


def run(args: argparse.Namespace) -> int:
    """Answer the prompt, and compare if asked.

    Raises:
        ValueError: an argument is out of range, or does not go with another.
        OSError: a model or standard input cannot be read.
    """
    _check_pairs(args)
    text = read_prompt(args.prompt)
    if not text:
        raise ValueError("PROMPT: is empty; give it some text")
    decoder = build_decoder(args)
    ids = decoder.encode([chat(text, decoder.tokenizer, raw=args.raw)])[0]
    settings = sampling_settings(args, decoder.tokenizer)
    decoder.prepare([ids], **settings)  # refuses before compiling
    if args.adaptive:
        _note("measuring what drafts and passes cost here")
        decoder = adapt(decoder, ids)
    result = _answer(args, decoder, ids, settings)
    comparison = compare(decoder, ids, **settings) if args.compare else None
    if args.json:
        print(json.dumps(_as_dict(result, comparison), allow_nan=False))
    elif comparison is not None:
        print("", *comparison_lines(comparison), sep="\n")
    return 0


def _check_pairs(args: argparse.Namespace) -> None:
    if "logprobs" in args and not args.json:
        raise ValueError("--logprobs: goes with --json, where they are shown; add it")
    if args.drafter != "none":
        return
    if args.compare:
        raise ValueError("--compare: needs a drafter to compare with none; drop --drafter none")
    if args.adaptive:
        raise ValueError("--adaptive: there are no drafts with --drafter none; drop one")
    if "draft_length" in args:
        raise ValueError("--draft-length: there are no drafts with --drafter none; drop one")


def read_prompt(argument: str) -> str:
    """Take the prompt itself, or standard input for "-"."""
    try:
        # The newline that ends a file or an echo is not part of what is asked.
        text = sys.stdin.read().removesuffix("\n") if argument == "-" else argument
        text.encode()  # a shell hands over any bytes
    except UnicodeError:
        raise ValueError("PROMPT: is not valid UTF-8; convert it first") from None
    return text


def build_decoder(args: argparse.Namespace) -> Decoder:
    """Load the models and put the decoder together."""
    _note(f"loading {args.target}")
    target, drafter = load(args.target), None
    if args.drafter != "none":
        length = getattr(args, "draft_length", DRAFT_LENGTH)
        drafter = drafter_of(args.drafter, target, args.target, length)
    return Decoder(target, drafter, verifier=getattr(args, "verifier", None))


def chat(text: str, tokenizer: Any, *, raw: bool) -> Prompt:
    """Put text in the chat template, where there is one."""
    if raw or getattr(tokenizer, "chat_template", None) is None or not text:
        return text
    return [{"role": "user", "content": text}]


def sampling_settings(args: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Read the arguments that ``Decoder.generate`` takes by the same names.

    Raises:
        ValueError: a grammar cannot be followed.
        OSError: the schema's file cannot be read.
    """
    same = Settings.__annotations__.keys() - {"draft_length", "logit_bias", "seed"}
    settings = {name: value for name, value in vars(args).items() if name in same}
    if "logit_bias" in args:
        settings["logit_bias"] = dict(args.logit_bias)
    try:
        if "regex" in args:
            settings["grammar"] = grammar.regex(args.regex, tokenizer)
        if "json_schema" in args:
            schema = Path(args.json_schema).read_text(encoding="utf-8")
            settings["grammar"] = grammar.json_schema(schema, tokenizer)
    except ImportError as error:
        raise ValueError(str(error)) from error
    return settings | {"seed": rng.draw_seeds(getattr(args, "seed", None), 1)}


def _answer(args, decoder: Decoder, ids: list[int], settings: dict[str, Any]) -> Result:
    """Decode in the way asked for; compiled first, so that the times are those of decoding."""
    length = len(ids) + settings["max_new_tokens"]
    _note("compiling")
    if args.trace:
        result = traced(decoder, ids, settings)
        print(_text(result))
    elif args.stream:
        for _ in decoder.stream([0] * length, **(settings | NOTHING)):
            pass
        result = _stream(decoder, ids, settings)
    else:
        decoder.warmup(length=length, **settings)
        result = decoder.generate(ids, **settings)
        if not args.json:
            print(_text(result))
    _note(summary(result))
    return result


def _stream(decoder: Decoder, ids: list[int], settings: dict[str, Any]) -> Result:
    stream = decoder.stream(ids, **settings)
    try:
        for piece in stream:
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        if stream.has_begun:
            _note(summary(stream.result))
        raise
    print(flush=True)
    return stream.result


def _text(result: Result) -> str:
    """A prompt of text was encoded, so there is a tokenizer to decode with."""
    assert result.texts is not None
    return result.texts[0]


def summary(result: Result) -> str:
    """One line about a result."""
    metrics = result.metrics
    parts = [f"{metrics.num_tokens} tokens, ended by {result.finish_reasons[0]}"]
    if metrics.num_tokens:
        parts += [f"{metrics.mean_acceptance_length:.2f} tokens per pass"]
    if not math.isnan(metrics.tokens_per_second):
        parts += [f"{metrics.tokens_per_second:.1f} tokens/s"]
    return ", ".join(parts)


def _as_dict(result: Result, comparison: Any) -> dict[str, Any]:
    metrics = result.metrics
    if comparison is not None:
        metrics = dataclasses.replace(metrics, draft_cost=comparison.costs.draft_cost)
    answer = {
        "text": _text(result),
        "tokens": result.tokens[0],
        "finish_reason": result.finish_reasons[0],
        "stopped_by": result.stopped_by[0],
        "seed": result.seeds[0],
        "metrics": metrics.to_dict(),
    }
    if result.logprobs is not None:
        answer["logprobs"] = _logprobs(result)
    return answer if comparison is None else answer | {"comparison": comparison_dict(comparison)}


def _logprobs(result: Result) -> dict[str, Any]:
    assert result.processed_logprobs is not None
    assert result.top_logprobs is not None
    # What a processor forbids has log-probability -inf, which JSON does not know.
    tops = [
        {t: x if math.isfinite(x) else None for t, x in top.items()}
        for top in result.top_logprobs[0]
    ]
    return {
        "raw": result.logprobs[0] if result.logprobs else [],
        "processed": result.processed_logprobs[0],
        "top": tops,
    }


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
