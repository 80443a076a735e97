"""Plain against speculative decoding of one prompt, in one process, in turns."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax import rng
from specjax.api import Decoder
from specjax.bench.costs import Costs, measure_costs
from specjax.bench.records import first_difference
from specjax.bench.timing import interleaved_medians
from specjax.metrics import ratio
from specjax.prompts import Prompt
from specjax.result import Result


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Both results of one prompt and seed, the seconds of each call, and what predicts them.

    ``must_agree``: at temperature 0, and under coupled verification at any, speculation emits
    plain decoding's own tokens; ratio rules keep only their law.
    """

    plain: Result
    speculative: Result
    plain_seconds: float
    speculative_seconds: float
    costs: Costs
    must_agree: bool

    @property
    def plain_tokens_per_second(self) -> float:
        """Prefill included."""
        return ratio(self.plain.metrics.num_tokens, self.plain_seconds)

    @property
    def speculative_tokens_per_second(self) -> float:
        """Prefill included."""
        return ratio(self.speculative.metrics.num_tokens, self.speculative_seconds)

    @property
    def ratio(self) -> float:
        """Speculative over plain tokens per second."""
        return ratio(self.speculative_tokens_per_second, self.plain_tokens_per_second)

    @property
    def acceptance_length(self) -> float:
        """E: tokens a target pass."""
        return self.speculative.metrics.mean_acceptance_length

    @property
    def predicted(self) -> float:
        """E / (K c + v); prefill, the same on both sides, is left out."""
        return self.costs.speedup(self.acceptance_length)

    @property
    def first_difference(self) -> int | None:
        """Where the tokens part, None where they are equal."""
        return first_difference(self.speculative.tokens[0], self.plain.tokens[0])


def compare(decoder: Decoder, prompt: Prompt, *, repeats: int = 3, **settings: Any) -> Comparison:
    """Decode ``prompt`` plainly and as ``decoder`` does, in turns, after a warm run of each.

    Args:
        decoder: what to compare with plain decoding of the same target.
        prompt: one prompt.
        repeats: timed runs of each.
        **settings: as for ``Decoder.generate``; without a seed one is drawn for both.

    Raises:
        ValueError: the decoder decodes plainly already, or a setting is out of range.
    """
    unasked = ("seed", "stop_token_ids")  # they change what is decoded, not what it costs
    measured = {name: value for name, value in settings.items() if name not in unasked}
    costs = measure_costs(decoder, prompt, **measured)
    program = decoder.program
    plain = Decoder(
        program.target,
        tokenizer=decoder.tokenizer,
        processors=decoder.processors,
        capacity=decoder.max_length,
        prefill_chunk=decoder.prefill_chunk,
    )
    settings["seed"] = rng.draw_seeds(settings.get("seed"), 1)
    results: dict[Decoder, Result] = {}

    def run(which: Decoder) -> None:
        results[which] = which.generate(prompt, **settings)

    seconds = interleaved_medians([lambda: run(plain), lambda: run(decoder)], repeats)
    return Comparison(
        results[plain],
        results[decoder],
        *seconds,
        costs=costs,
        must_agree=not settings.get("temperature") or program.verifier.coupled,
    )
