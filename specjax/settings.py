"""What a call can be told, by the names people know, and how it becomes one value a row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax import rng
from specjax.prompts import is_int, listed
from specjax.types import Sampling

LARGEST = 1e30
"""Penalties and biases may be this large: the sums of all of them still fit float32."""

Number = float | Sequence[float]
Whole = int | Sequence[int]
Tokens = Sequence[int] | Sequence[Sequence[int] | None]
Biases = Mapping[int, float] | Sequence[Mapping[int, float] | None]


class Settings(TypedDict, total=False):
    """Settings of ``Decoder.generate`` and ``stream``; each is one value, or a list of one a row.

    Length: ``max_new_tokens`` (default 128) and ``max_length`` (prompt included) bound the
    output, ``min_new_tokens`` keeps it from ending earlier. ``draft_length`` caps a row's drafts
    below the drafter's own; 0 decodes the row plainly.

    Law, in this order: ``logit_bias`` ({token: added}), ``banned_tokens``, ``allowed_tokens``
    (nothing else may come, not even a stop token), ``repetition_penalty`` (1 is off),
    ``presence_penalty``, ``frequency_penalty`` (all three over prompt and output),
    ``no_repeat_ngram_size`` (0 is off), ``min_new_tokens``, ``grammar``
    (``specjax.grammar.regex`` or ``json_schema``), ``temperature`` (default 0: greedy),
    ``top_k`` (0 is off), ``top_p`` (1 is off), ``min_p`` (0 is off).

    Ends: ``stop`` (a string or several; the text ends before the one complete first) and
    ``stop_token_ids`` (default the tokenizer's own, [] for none).

    Randomness: ``seed`` s gives row i the seed s + i, a list is taken as it is, and None, also
    in a list, draws entropy. ``n`` samples of each prompt share one prefill; the first is what
    n = 1 gives.

    Answer: ``logprobs`` asks for log-probabilities, with so many alternatives a token.
    """

    max_new_tokens: Whole
    max_length: Whole | None
    min_new_tokens: Whole
    temperature: Number
    top_k: Whole
    top_p: Number
    min_p: Number
    repetition_penalty: Number
    presence_penalty: Number
    frequency_penalty: Number
    no_repeat_ngram_size: Whole
    logit_bias: Biases | None
    allowed_tokens: Tokens | None
    banned_tokens: Tokens | None
    grammar: Any
    stop: str | Sequence[str] | Sequence[Sequence[str] | None] | None
    stop_token_ids: Tokens | None
    draft_length: Whole | None
    seed: int | Sequence[int | None] | None
    n: int
    logprobs: int | None


def refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist: nothing is silently ignored.

    Raises:
        TypeError: naming it, and the one that may be meant.
    """
    for name in settings:
        if name not in Settings.__annotations__:
            near = difflib.get_close_matches(name, Settings.__annotations__, 1)
            meant = f"; is {near[0]} meant?" if near else ""
            raise TypeError(f"{name}: there is no such setting{meant}")


def sampling_of(
    batch: int, vocab_size: int, stop_ids: Int[Array, "B I"], settings: Mapping[str, Any]
) -> Sampling:
    """One value a row of each setting that shapes the law, checked; None for what is not used.

    Raises:
        ValueError: a value is out of range or of another length than the batch, by name.
    """

    def number(name: str, default: float, low: float, high: float = np.inf, **limits: bool):
        return per_row(name, settings.get(name, default), batch, np.float32, low, high, **limits)

    def whole(name: str):
        return per_row(name, settings.get(name, 0), batch, np.int32, 0)

    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    penalised = any(name in settings for name in penalties)
    return Sampling(
        temperature=number("temperature", 0.0, 0),
        top_k=whole("top_k"),
        top_p=number("top_p", 1.0, 0, 1, open_low=True),
        min_p=number("min_p", 0.0, 0, 1),
        stop_ids=stop_ids,
        bias=bias_of(batch, vocab_size, settings),
        repetition_penalty=number(penalties[0], 1.0, 0, LARGEST, open_low=True)
        if penalised
        else None,
        presence_penalty=number(penalties[1], 0.0, -LARGEST, LARGEST) if penalised else None,
        frequency_penalty=number(penalties[2], 0.0, -LARGEST, LARGEST) if penalised else None,
        no_repeat_ngram_size=whole("no_repeat_ngram_size")
        if "no_repeat_ngram_size" in settings
        else None,
        min_new_tokens=whole("min_new_tokens") if "min_new_tokens" in settings else None,
    )


def per_row(name, value, batch, dtype, low, high=np.inf, *, open_low=False) -> Any:
    """Normalise a number or one a row to a strongly typed array: a weak type would retrace."""
    values = np.asarray(value, None if rng.is_flat(value) else object)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != batch):
        raise ValueError(f"{name}: give one number or one for each of {batch} rows, got {value!r}")
    integer = np.issubdtype(dtype, np.integer)
    if values.dtype.kind not in ("iu" if integer else "iuf"):
        kind = "an int" if integer else "a number"
        raise ValueError(f"{name}: must be {kind}, got {value!r}")
    high = min(high, np.iinfo(dtype).max if integer else float(np.finfo(dtype).max))
    fits = ((values >= low) & (values <= high)).all()
    # What is above 0 must still be so in float32.
    if not fits or (open_low and not (values.astype(dtype) > low).all()):
        least = f"{'above' if open_low else 'at least'} {low:g}"
        raise ValueError(f"{name}: must be {least} and at most {high:g}, got {value!r}")
    return jnp.asarray(np.broadcast_to(values, (batch,)).astype(dtype))


def bias_of(batch: int, vocab_size: int, settings: Mapping[str, Any]) -> Float[Array, "B V"] | None:
    """What is added to the logits: biases, and -inf for what is banned or not allowed."""
    given = {
        name: settings[name]
        for name in ("logit_bias", "banned_tokens", "allowed_tokens")
        if settings.get(name) is not None
    }
    if not given:
        return None
    bias = np.zeros((batch, vocab_size), np.float32)
    for row, biases in enumerate(each_row("logit_bias", given.get("logit_bias"), batch, _is_map)):
        for token, amount in _checked_biases({} if biases is None else biases, vocab_size).items():
            bias[row, token] += amount
    for row, ids in enumerate(rows_of_ids("banned_tokens", given, batch, vocab_size)):
        bias[row, ids or []] = -np.inf
    for row, ids in enumerate(rows_of_ids("allowed_tokens", given, batch, vocab_size)):
        if ids is not None:
            if not ids:
                raise ValueError("allowed_tokens: allows no token; give at least one, or None")
            bias[row, np.setdiff1d(np.arange(vocab_size), ids)] = -np.inf
    return jnp.asarray(bias)


def _checked_biases(biases: Any, vocab_size: int) -> dict[int, float]:
    """Token ids to amounts; -inf bans a token, as ``banned_tokens`` does."""
    if not _is_map(biases):
        raise ValueError(f"logit_bias: must map token ids to numbers, got {biases!r}")
    for token, amount in biases.items():
        if not is_int(token) or not 0 <= token < vocab_size:
            raise ValueError(f"logit_bias: {token!r} is no token id below {vocab_size}")
        number = isinstance(amount, int | float | np.number) and not isinstance(amount, bool)
        if not number or not (amount == -np.inf or abs(amount) <= LARGEST):
            raise ValueError(
                f"logit_bias: of token {token} must be a number of at most {LARGEST:g} either "
                f"way, or -inf, got {amount!r}"
            )
    return {int(token): float(amount) for token, amount in biases.items()}


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def rows_of_ids(
    name: str, settings: Mapping[str, Any], batch: int, vocab_size: int
) -> list[list[int] | None]:
    """Token ids of each row: the same list for all, or a list (or None) for each."""
    value = settings.get(name)
    rows = each_row(
        name, value, batch, lambda v: not any(x is None or _holds(x) for x in listed(v))
    )
    return [None if ids is None else ids_of(name, ids, vocab_size) for ids in rows]


def ids_of(name: str, ids: Any, vocab_size: int) -> list[int]:
    """A list of token ids, checked."""
    if isinstance(ids, str) or not all(is_int(t) and 0 <= t < vocab_size for t in listed(ids)):
        raise ValueError(f"{name}: must be a list of token ids below {vocab_size}, got {ids!r}")
    return [int(t) for t in listed(ids)]


def each_row(name: str, value: Any, batch: int, is_one: Callable[[Any], bool]) -> list[Any]:
    """The same value for every row where it is one, else a list with a value (or None) for each."""
    if value is None or is_one(value):
        return [value] * batch
    rows = listed(value)
    if len(rows) != batch:
        raise ValueError(
            f"{name}: give one for all rows or one for each of {batch} rows, got {len(rows)}"
        )
    return rows


def _holds(value: Any) -> bool:
    """Whether a value holds others."""
    return isinstance(value, Sequence | set | np.ndarray) and not isinstance(value, str)
