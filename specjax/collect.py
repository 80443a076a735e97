"""From the arrays of a call to lists and texts on the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from specjax.call import Call
from specjax.compiled import Output
from specjax.metrics import Metrics
from specjax.protocols import Tokenizer
from specjax.result import FINISH_REASONS, Result
from specjax.texts import answer
from specjax.types import RUNNING, STOPPED


def collect(
    call: Call, output: Output, tokenizer: Tokenizer | None, *, suspended: Any = None, **times: Any
) -> Result:
    """Make the result of a call from its output, which is on the host; ``times`` are metrics'.

    Rows that have not ended are "interrupted".
    """
    num, samples = call.num_rows, call.request.num_samples
    answers = [row_answer(call, output, tokenizer, row) for row in range(num)]
    every = [row_span(output, row) for row in range(num)]
    per_position = getattr(call.program.target, "experts_per_position", None)
    metrics_of = partial(Metrics.from_stats, output.stats, experts_per_position=per_position)
    program, seeds = call.program, np.asarray(call.request.seeds)
    return Result(
        tokens=[output.tokens[row, span].tolist() for row, span in enumerate(every)],
        texts=None if tokenizer is None else [text for text, _ in answers],
        finish_reasons=[FINISH_REASONS[int(code)] for code in output.finish],
        stopped_by=[stop for _, stop in answers],
        drafted=[output.drafted[row, span].tolist() for row, span in enumerate(every)],
        seeds=np.repeat(seeds, samples).tolist(),
        samples=[row % samples for row in range(num)],
        metrics=metrics_of(**times),
        row_metrics=[metrics_of(row) for row in range(num)],
        exact=program.verifier.exact,
        rows_independent=program.rows_independent,
        suspended=suspended,
        **logprobs(output, every),
    )


def row_span(output: Output, row: int) -> slice:
    """Where the output of a row lies."""
    return slice(int(output.begin[row]), int(output.length[row]))


def row_answer(
    call: Call, output: Output, tokenizer: Tokenizer | None, row: int
) -> tuple[str, int | str | None]:
    """Text of one row, without its stop, and the stop."""
    tokens = output.tokens[row, row_span(output, row)].tolist()
    if output.finish[row] != STOPPED:
        return "" if tokenizer is None else tokenizer.decode(tokens), None
    stop_ids = np.asarray(call.request.sampling.stop_ids)[row // call.request.num_samples]
    if tokenizer is None:
        return "", tokens[-1]
    return answer(tokenizer, tokens, set(stop_ids.tolist()), call.stops[row])


def logprobs(output: Output, spans: list[slice]) -> dict[str, Any]:
    """Log-probabilities of the tokens in a span of each row, by the names of ``Result``."""
    record = output.record
    if record is None:
        return {}
    rows = list(enumerate(spans))
    tops = [
        zip(record.top_ids[row, span], record.top[row, span], strict=True) for row, span in rows
    ]
    return {
        "logprobs": [record.raw[row, span].tolist() for row, span in rows],
        "processed_logprobs": [record.processed[row, span].tolist() for row, span in rows],
        "top_logprobs": [
            [dict(zip(ids.tolist(), laws.tolist(), strict=True)) for ids, laws in top]
            for top in tops
        ],
    }


def all_ended(output: Output) -> bool:
    """Whether no row goes on."""
    return bool((output.finish != RUNNING).all())
