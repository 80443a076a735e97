"""Draft lengths that adapt, with costs measured on this machine."""

from __future__ import annotations

from typing import Any, Unpack

import jax.numpy as jnp

from specjax.adaptive import Adaptive
from specjax.api import Decoder
from specjax.bench.costs import time_passes
from specjax.configure import default_widths
from specjax.program import Program
from specjax.prompts import Prompt
from specjax.settings import Settings


def adapt(
    decoder: Decoder,
    prompt: Prompt,
    *,
    repeats: int = 5,
    options: dict[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Decoder:
    """The same decoder, with each row's drafts as long as its past says will pay here.

    Measures c and v after ``prompt``, v for each width that the pass is compiled for (where the
    decoder has but one: 0, 2, 4, 8 ... draft nodes).

    Args:
        decoder: whose drafter and target are measured; compiling takes most of the time.
        prompt: what is in the caches meanwhile; its length should be typical.
        repeats: turns of measuring.
        options: other fields of ``specjax.Adaptive``, such as ``prior``.
        **settings: as for ``Decoder.generate``.

    Raises:
        ValueError: the decoder decodes plainly, or a setting is out of range.
    """
    program = decoder.program
    depth = program.drafter.depth
    widths = default_widths(program.drafter) if program.widths is None else program.widths
    wide = Program(program.target, program.drafter, program.verifier, widths=widths)
    fed = sorted({0, *wide.passes})
    drafts, seconds = time_passes(decoder, prompt, fed, repeats, settings)
    one = seconds[0]
    costs = [seconds[fed.index(num)] / one for num in wide.passes]
    policy = Adaptive(
        pass_costs=jnp.asarray(by_length(wide, costs), jnp.float32),
        draft_cost=jnp.float32(drafts / one / depth if program.drafter.samples else 0),
        **(options or {}),
    )
    return Decoder(
        program.target,
        program.drafter,
        verifier=program.verifier,
        tokenizer=decoder.tokenizer,
        processors=decoder.processors,
        draft_processors=program.draft_processors,
        policy=policy,
        stopping=program.stopping,
        widths=widths,
        capacity=decoder.max_length,
        prefill_chunk=decoder.prefill_chunk,
    )


def by_length(program: Program, costs: list[float]) -> list[float]:
    """Cost of the pass that drafts of 0, 1, ... K tokens take, of those compiled.

    A tree of which only the upper levels are fed is charged for all its nodes.
    """
    drafter, found = program.drafter, [1.0]
    for length in range(1, drafter.depth + 1):
        nodes = length if program.is_chain else drafter.num_nodes
        fits = [cost for num, cost in zip(program.passes, costs, strict=True) if num >= nodes]
        found.append(fits[0])
    return found
