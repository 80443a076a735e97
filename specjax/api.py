"""``Decoder``: the user's view of the loop, with text, validation and compiled programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import numpy as np

from specjax import compiled
from specjax.call import Call, prepare
from specjax.collect import collect
from specjax.configure import (
    check_program,
    choose_drafter,
    choose_verifier,
    choose_widths,
    num_tokens_of,
)
from specjax.distributed import agree_on_seeds
from specjax.loop import Program
from specjax.prompts import Prompt, encode, encode_one, is_int
from specjax.protocols import Policy, Processor, StoppingRule, Verifier
from specjax.request import LEAST_CAPACITY, bucket, build, limit_of
from specjax.result import Result
from specjax.sampling import FILTERS
from specjax.settings import Settings
from specjax.sharding import layout_of
from specjax.stream import Stream
from specjax.types import OUT_OF_BUDGET, RUNNING


class Decoder:
    """Decode a target speculatively: the same tokens, or the same law, sooner.

    Args:
        target: a model from ``specjax.load``, or any ``specjax.protocols.Target``.
        drafter: what proposes drafts; None decodes plainly, through the same loop.
        verifier: "token", "block" or "coupled", all exact; "typical", which is lossy; or any
            ``specjax.protocols.Verifier``. Default: coupled for drafts that are point masses,
            block for sampled chains, token for trees.
        tokenizer: default the target's own.
        processors: your own, applied on both sides after penalties and before temperature.
        draft_processors: the whole chain of the draft side, None for the target's. Any keeps the
            law; one unlike the target's lowers acceptance.
        policy: bounds each row's drafts by what it has seen, such as ``specjax.Adaptive``.
        stopping: ends drafts as they are drawn, such as ``specjax.stopping.Confidence(0.4)``.
        widths: numbers of draft nodes that the target's pass is compiled for; a round takes the
            first that holds its drafts, 0 being a plain pass. Each makes compiling longer. Default:
            all nodes always; with a policy or a stopping rule 0, 2, 4, 8 ...
        capacity: the longest prompt and output together; default what the target allows.
        prefill_chunk: positions a prefill pass; default 32 on CPU and 256 elsewhere.

    Example:
        >>> import jax
        >>> import specjax
        >>> from specjax.testing import tiny_lm
        >>> decoder = Decoder(tiny_lm(jax.random.key(0)), specjax.drafters.NGram(4))
        >>> result = decoder.generate([5, 6, 7, 5, 6], max_new_tokens=8)
        >>> len(result.tokens[0])
        8

    Raises:
        ValueError: a combination that would be biased or that cannot run.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any = None,
        *,
        verifier: str | Verifier | None = None,
        tokenizer: Any = None,
        processors: tuple[Processor, ...] = (),
        draft_processors: tuple[Processor, ...] | None = None,
        policy: Policy | None = None,
        stopping: StoppingRule | None = None,
        widths: Sequence[int] | None = None,
        capacity: int | None = None,
        prefill_chunk: int | None = None,
    ) -> None:
        if isinstance(target, type) or not hasattr(target, "extend"):
            raise ValueError(
                f"target: must be a Target, got {target!r:.60}; specjax.load(name) makes one"
            )
        drafter = choose_drafter(drafter)
        self.tokenizer = getattr(target, "tokenizer", None) if tokenizer is None else tokenizer
        self.processors = tuple(processors)
        self.program = Program(
            target,
            drafter,
            choose_verifier(verifier, drafter),
            (*self.processors, *FILTERS),
            draft_processors,
            stopping=stopping,
            policy=policy,
            num_tokens=num_tokens_of(self.tokenizer, target.vocab_size),
            widths=choose_widths(widths, drafter, policy, stopping),
            layout=layout_of(target),
        )
        self.max_length = _checked_capacity(capacity, target.max_length)
        if prefill_chunk is None:
            prefill_chunk = 32 if jax.default_backend() == "cpu" else 256
        self.prefill_chunk = _positive("prefill_chunk", prefill_chunk)
        check_program(self.program)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        rounds: int | None = None,
        keep_state: bool = False,
        **settings: Unpack[Settings],
    ) -> Result:
        """Decode every prompt to its end, in one dispatch.

        Args:
            prompts: a string, token ids or chat messages, or a list of such.
            rounds: rounds a dispatch, None for all. Between dispatches Ctrl-C ends the call,
                and what there is comes back.
            keep_state: let ``resume`` go on from the result, which then holds the caches.
            **settings: max_new_tokens, temperature, top_p, stop, seed and so on, each for all
                rows or one a row; see ``specjax.settings.Settings``.

        Raises:
            ValueError: an argument is out of range, by name.
            TypeError: there is no such argument.
        """
        if rounds is not None:
            if keep_state:
                raise ValueError("keep_state: goes with one dispatch; drop rounds")
            return self._interruptible(prompts, rounds, settings)
        call = self.prepare(self.encode(prompts), **settings)
        begin = time.perf_counter()
        output, state = compiled.generate(
            call.program, call.request, chunk=self.prefill_chunk, keep_state=keep_state
        )
        return self._finished(call, output, state, time.perf_counter() - begin)

    def resume(self, result: Result, *, max_new_tokens: int = 128) -> Result:
        """Go on from a result of ``generate(..., keep_state=True)``, up to so many more tokens.

        Rows that ended at their budget go on; the result is that of the whole output. Under
        coupled verification and at temperature 0 its tokens are those of one longer call, under
        the other verifiers their law is. The state may be resumed any number of times.

        Raises:
            ValueError: the result has no state, or the budget does not fit.
        """
        if result.suspended is None:
            raise ValueError("result: has no state; call generate(..., keep_state=True)")
        if not is_int(max_new_tokens):
            raise ValueError(f"max_new_tokens: must be an int, got {max_new_tokens!r}")
        call, state, ended, seconds = result.suspended
        going = np.isin(ended.finish, (RUNNING, OUT_OF_BUDGET))
        settings: Settings = {"max_new_tokens": np.where(going, max_new_tokens, 0).tolist()}
        limit = limit_of(ended.length, settings, self.max_length)
        capacity = max(state.context.tokens.shape[1], bucket(int(limit.max()), LEAST_CAPACITY))
        begin = time.perf_counter()
        output, state = compiled.resume(
            call.program, state, limit, capacity=capacity, chunk=self.prefill_chunk
        )
        return self._finished(call, output, state, seconds + time.perf_counter() - begin)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        rounds: int = 1,
        **settings: Unpack[Settings],
    ) -> Stream:
        """Like ``generate``, handing out pieces after every ``rounds`` rounds.

        Iterate over the stream for ``Piece``s; ``stream.result`` is the whole, at any moment.
        """
        _positive("rounds", rounds)
        call = self.prepare(self.encode(prompts), **settings)
        return Stream(call, rounds=rounds, chunk=self.prefill_chunk, tokenizer=self.tokenizer)

    def _interruptible(self, prompts: Any, rounds: int, settings: Settings) -> Result:
        stream = self.stream(prompts, rounds=rounds, **settings)
        try:
            for _ in stream:
                pass
        except KeyboardInterrupt:
            if not stream.has_begun:
                raise
        return stream.result

    def _finished(self, call: Call, output: compiled.Output, state: Any, seconds: float) -> Result:
        output = jax.device_get(output)
        suspended = None if state is None else (call, state, output, seconds)
        return collect(call, output, self.tokenizer, suspended=suspended, seconds=seconds)

    def score(self, prompt: Prompt, completion: str | Sequence[int]) -> list[float]:
        """Log-probability of each completion token under the target itself, at temperature 1.

        Raises:
            ValueError: prompt or completion is empty or does not fit.
        """
        vocab = self.program.target.vocab_size
        ids = encode_one(prompt, self.tokenizer, vocab, "prompt:")
        rest = encode_one(completion, self.tokenizer, vocab, "completion:", continues=True)
        request = self.prepare([ids + rest], max_new_tokens=0).request
        scores = compiled.score(
            self.program.target, request.tokens, request.length, chunk=self.prefill_chunk
        )
        return np.asarray(scores)[0, len(ids) : len(ids) + len(rest)].tolist()

    def warmup(self, *, batch: int = 1, length: int = 128, **settings: Unpack[Settings]) -> None:
        """Compile ``generate`` for ``batch`` prompts whose length and budget sum to ``length``.

        Settings that are off by default (penalties, biases, a grammar, stop strings, logprobs)
        are part of the program where they are used: give those that are to come.
        """
        _positive("batch", batch)
        length = min(_positive("length", length), self.max_length or length)
        call = self.prepare([[0] * length] * batch, **{**settings, "max_new_tokens": 0})
        output = compiled.generate(call.program, call.request, chunk=self.prefill_chunk)
        jax.block_until_ready(output)

    @property
    def rows_independent(self) -> bool:
        """Whether a row decodes the same alone and in any batch."""
        return self.program.rows_independent

    def encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        """Turn prompts into rows of token ids, as ``generate`` does."""
        return encode(prompts, self.tokenizer, self.program.target.vocab_size)

    def prepare(self, rows: list[list[int]], **settings: Unpack[Settings]) -> Call:
        """Check the settings of ``generate`` and lay a call out: its program and its arrays."""
        program = self.program
        if program.layout is not None and program.layout.mesh.is_multi_process:
            settings["seed"] = agree_on_seeds(settings.get("seed"), len(rows))
        request = build(
            rows,
            settings,
            vocab_size=program.target.vocab_size,
            depth=program.drafter.depth,
            longest=self.max_length,
            own_stop_ids=getattr(self.tokenizer, "stop_ids", ()),
        )
        return prepare(program, self.processors, request, self.tokenizer, settings)

    def collect(self, call: Call, output: compiled.Output, **times: Any) -> Result:
        """Bring a call to the host; ``times`` go to its metrics."""
        return collect(call, jax.device_get(output), self.tokenizer, **times)


def _positive(name: str, value: Any) -> int:
    if not is_int(value) or value < 1:
        raise ValueError(f"{name}: must be an int of at least 1, got {value!r}")
    return int(value)


def _checked_capacity(capacity: int | None, max_length: int | None) -> int | None:
    """The longest text: the target's own, or less if asked for less."""
    if capacity is None:
        return max_length
    capacity = _positive("capacity", capacity)
    if max_length is not None and capacity > max_length:
        raise ValueError(f"capacity: {capacity} is beyond the target's {max_length}; lower it")
    return capacity
