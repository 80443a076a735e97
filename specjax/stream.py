"""Handing a call's tokens out while they are made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax import compiled
from specjax.io.text_stream import TextStream
from specjax.program import Program
from specjax.protocols import Tokenizer
from specjax.request import Request
from specjax.result import FINISH_REASONS, Piece, Result
from specjax.types import RUNNING


class Stream:
    """Iterate for pieces; ``result`` is the whole once the iteration has ended.

    The pieces' texts of a row, joined, are the row's text in the result.
    """

    def __init__(
        self,
        program: Program,
        request: Request,
        *,
        rounds: int,
        chunk: int,
        tokenizer: Tokenizer | None,
        collect: Callable[..., Result],
    ) -> None:
        """Nothing runs before the first piece is asked for.

        Args:
            program: what every round runs.
            request: the prompts and settings.
            rounds: rounds a dispatch.
            chunk: positions a prefill pass.
            tokenizer: turns tokens into text; None leaves texts empty.
            collect: makes the result of the request, the last output and the times.
        """
        self._program = program
        self._request = request
        self._rounds = jnp.asarray(rounds, jnp.int32)
        self._chunk = chunk
        self._tokenizer = tokenizer
        self._collect = collect
        self._result: Result | None = None
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    @property
    def result(self) -> Result:
        """The whole call's result.

        Raises:
            ValueError: the stream has not been read to its end.
        """
        if self._result is None:
            raise ValueError("result: is there once the stream has been read to its end")
        return self._result

    def _run(self) -> Iterator[Piece]:
        request = self._request
        begin = time.perf_counter()
        state = compiled.begin(self._program, request, chunk=self._chunk)
        rows = [_Row(self._tokenizer, request, row) for row in range(len(request.length))]
        while True:
            state, output = compiled.advance(self._program, state, self._rounds)
            output = jax.device_get(output)
            now = time.perf_counter()
            for row in rows:
                piece = row.take(output, now)
                if piece is not None:
                    yield piece
            if (output.finish != RUNNING).all():
                break
        self._result = self._collect(
            request,
            output,
            seconds=time.perf_counter() - begin,
            time_to_first_token=min((r.times[0] for r in rows if r.times), default=math.nan)
            - begin,
            gaps=tuple(gap for row in rows for gap in row.gaps()),
        )


class _Row:
    """What has been handed out of one row, and when."""

    def __init__(self, tokenizer: Tokenizer | None, request: Request, row: int) -> None:
        self.row = row
        self.shown = int(request.length[row])
        self.stops = set(np.asarray(request.sampling.stop_ids)[row].tolist())
        self.text = None if tokenizer is None else TextStream(tokenizer)
        self.times: list[float] = []
        self.done = False

    def take(self, output: compiled.Output, now: float) -> Piece | None:
        """What is new since the last time, None where nothing is."""
        if self.done:
            return None
        span = slice(self.shown, int(output.length[self.row]))
        self.shown = span.stop
        self.done = output.finish[self.row] != RUNNING
        tokens = output.tokens[self.row, span].tolist()
        self.times += [now] * len(tokens)
        return Piece(
            row=self.row,
            text=self._text(tokens),
            tokens=tokens,
            drafted=output.drafted[self.row, span].tolist(),
            finish_reason=FINISH_REASONS[int(output.finish[self.row])] if self.done else None,
        )

    def _text(self, tokens: list[int]) -> str:
        if self.text is None:
            return ""
        shown = tokens[:-1] if tokens and tokens[-1] in self.stops else tokens
        return self.text.push(shown) + (self.text.flush() if self.done else "")

    def gaps(self) -> list[float]:
        """Seconds between neighbouring tokens; those of one round come together."""
        return np.diff(self.times).tolist()
