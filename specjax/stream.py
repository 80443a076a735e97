"""Handing a call's tokens out while they are made."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax import compiled
from specjax.call import Call
from specjax.collect import all_ended, collect, logprobs, row_answer, row_span
from specjax.io.text_stream import TextStream
from specjax.protocols import Tokenizer
from specjax.result import FINISH_REASONS, Piece, Result
from specjax.texts import dropped_spaces, held_back
from specjax.types import RUNNING


class Stream:
    """Iterate for pieces; ``result`` is the whole, of what has been made so far.

    The pieces' texts of a row, joined, are the row's text in the result. A stream that is left
    early, or interrupted, loses nothing: rows that had not ended are "interrupted".
    """

    def __init__(self, call: Call, *, rounds: int, chunk: int, tokenizer: Tokenizer | None) -> None:
        """Nothing runs before the first piece is asked for.

        Args:
            call: what runs, on what.
            rounds: rounds a dispatch.
            chunk: positions a prefill pass.
            tokenizer: turns tokens into text; None leaves texts empty.
        """
        self._call = call
        self._rounds = jnp.asarray(rounds, jnp.int32)
        self._chunk = chunk
        self._tokenizer = tokenizer
        self._rows = [_Row(tokenizer, call, row) for row in range(call.num_rows)]
        self._output: compiled.Output | None = None
        self._begin = self._now = math.nan
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    @property
    def result(self) -> Result:
        """The call's result, as far as it has come.

        Raises:
            ValueError: nothing has been made yet.
        """
        if self._output is None:
            raise ValueError("result: nothing has been made yet; iterate over the stream first")
        first = min((row.times[0] for row in self._rows if row.times), default=math.nan)
        return collect(
            self._call,
            self._output,
            self._tokenizer,
            seconds=self._now - self._begin,
            time_to_first_token=first - self._begin,
            gaps=tuple(gap for row in self._rows for gap in row.gaps()),
        )

    @property
    def has_begun(self) -> bool:
        """Whether there is a result."""
        return self._output is not None

    def _run(self) -> Iterator[Piece]:
        program = self._call.program
        self._begin = time.perf_counter()
        state = compiled.begin(program, self._call.request, chunk=self._chunk)
        while self._output is None or not all_ended(self._output):
            state, output = compiled.advance(program, state, self._rounds)
            self._output = output = jax.device_get(output)
            self._now = time.perf_counter()
            for row in self._rows:
                piece = row.take(output, self._now)
                if piece is not None:
                    yield piece


class _Row:
    """What has been handed out of one row, and when."""

    def __init__(self, tokenizer: Tokenizer | None, call: Call, row: int) -> None:
        self.row = row
        self.call = call
        self.tokenizer = tokenizer
        self.taken = int(call.request.length[row // call.request.num_samples])
        self.decoder = None if tokenizer is None else TextStream(tokenizer)
        self.text, self.shown = "", 0
        self.times: list[float] = []
        self.done = False

    def take(self, output: compiled.Output, now: float) -> Piece | None:
        """What is new since the last time, None where nothing is."""
        if self.done:
            return None
        row, span = self.row, slice(self.taken, int(output.length[self.row]))
        self.taken = span.stop
        self.done = output.finish[row] != RUNNING
        tokens = output.tokens[row, span].tolist()
        self.times += [now] * len(tokens)
        likely = logprobs(_only(output, row), [span])
        return Piece(
            row=row,
            text=self._newly_shown(output, tokens),
            tokens=tokens,
            drafted=output.drafted[row, span].tolist(),
            finish_reason=FINISH_REASONS[int(output.finish[row])] if self.done else None,
            logprobs=likely["logprobs"][0] if likely else None,
            top_logprobs=likely["top_logprobs"][0] if likely else None,
        )

    def _newly_shown(self, output: compiled.Output, tokens: list[int]) -> str:
        """Text that is certain now; at the end all that the result will have."""
        if self.decoder is None:
            return ""
        if self.done:
            self.text, _ = row_answer(self.call, output, self.tokenizer, self.row)
            end = len(self.text)
        else:
            self.text += self.decoder.push(tokens)
            end = len(self.text) - self._held_back(output)
        begin, self.shown = self.shown, max(end, self.shown)
        return self.text[begin:end]

    def _held_back(self, output: compiled.Output) -> int:
        """Characters of the text that a stop may yet take."""
        stops = self.call.stops[self.row]
        if self.tokenizer is None or not stops:
            return 0
        tokens = output.tokens[self.row, row_span(output, self.row)].tolist()
        dropped = dropped_spaces(self.tokenizer, tokens, self.text)
        return min(held_back(dropped + self.text, stops), len(self.text))

    def gaps(self) -> list[float]:
        """Seconds between neighbouring tokens; those of one round come together."""
        return np.diff(self.times).tolist()


def _only(output: compiled.Output, row: int) -> compiled.Output:
    """The part of an output that belongs to one row."""
    return jax.tree.map(lambda x: x[row : row + 1], output)
