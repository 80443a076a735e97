"""``Decoder``: the user's view of the loop, with text, validation and compiled programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax import compiled, sampling
from specjax.drafters import Plain
from specjax.loop import Program
from specjax.metrics import Metrics
from specjax.prompts import Prompt, encode, encode_one, is_int
from specjax.protocols import Processor, Verifier
from specjax.request import Request, build
from specjax.result import FINISH_REASONS, Result
from specjax.stream import Stream
from specjax.types import RUNNING
from specjax.verify import Block, Coupled, Token

VERIFIERS = {"token": Token, "block": Block, "coupled": Coupled}


class Decoder:
    """Decode a target speculatively: the same tokens, or the same law, sooner.

    Args:
        target: a model from ``specjax.load``, or any ``specjax.protocols.Target``.
        drafter: what proposes drafts; None decodes plainly, through the same loop.
        verifier: "token", "block" or "coupled", or any ``specjax.protocols.Verifier``. Default:
            coupled for drafts that are point masses, block for sampled chains, token for trees.
        tokenizer: default the target's own.
        processors: your own, applied on both sides before temperature, top-k, top-p and min-p.
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
        capacity: int | None = None,
        prefill_chunk: int | None = None,
    ) -> None:
        drafter = Plain() if drafter is None else drafter
        if isinstance(target, type) or not hasattr(target, "extend"):
            raise ValueError(
                f"target: must be a Target, got {target!r:.60}; specjax.load(name) makes one"
            )
        if isinstance(drafter, type) or not hasattr(drafter, "propose"):
            raise ValueError(
                f"drafter: must be a Drafter such as specjax.drafters.NGram(4) or "
                f"specjax.drafters.DraftModel(model), or None; got {drafter!r:.60}"
            )
        self.tokenizer = getattr(target, "tokenizer", None) if tokenizer is None else tokenizer
        self.processors = tuple(processors)
        self.program = Program(
            target,
            drafter,
            choose_verifier(verifier, drafter),
            (*self.processors, *sampling.FILTERS),
        )
        self.max_length = _checked_capacity(capacity, target.max_length)
        if prefill_chunk is None:
            prefill_chunk = 32 if jax.default_backend() == "cpu" else 256
        self.prefill_chunk = _positive("prefill_chunk", prefill_chunk)
        _check_pair(self.program)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
        min_p: float | Sequence[float] = 0.0,
        stop_token_ids: Sequence[int] | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> Result:
        """Decode every prompt to its end, in one dispatch.

        Args:
            prompts: a string, token ids or chat messages, or a list of such.
            max_new_tokens: tokens to add at most, to each row.
            temperature: 0 is greedy. This and the next three: one number, or one a row.
            top_k: keep the k likeliest tokens; 0 keeps all.
            top_p: keep the likeliest tokens of this mass.
            min_p: keep tokens at least this fraction as likely as the likeliest.
            stop_token_ids: exactly these end a row; default the tokenizer's, [] for none.
            seed: s gives row i the seed s + i; a list is taken as it is; None draws entropy.

        Raises:
            ValueError: an argument is out of range, by name.
        """
        request = self.request(
            self.encode(prompts),
            stop_token_ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
        begin = time.perf_counter()
        output = jax.block_until_ready(
            compiled.generate(self.program, request, chunk=self.prefill_chunk)
        )
        return self.collect(request, output, seconds=time.perf_counter() - begin)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
        min_p: float | Sequence[float] = 0.0,
        stop_token_ids: Sequence[int] | None = None,
        seed: int | Sequence[int] | None = None,
        rounds: int = 1,
    ) -> Stream:
        """Like ``generate``, handing out pieces after every ``rounds`` rounds.

        Iterate over the stream for ``Piece``s; afterwards ``stream.result`` is the whole.
        """
        _positive("rounds", rounds)
        request = self.request(
            self.encode(prompts),
            stop_token_ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
        return Stream(
            self.program,
            request,
            rounds=rounds,
            chunk=self.prefill_chunk,
            tokenizer=self.tokenizer,
            collect=self.collect,
        )

    def score(self, prompt: Prompt, completion: str | Sequence[int]) -> list[float]:
        """Log-probability of each completion token under the target itself, at temperature 1.

        Raises:
            ValueError: prompt or completion is empty or does not fit.
        """
        vocab = self.program.target.vocab_size
        ids = encode_one(prompt, self.tokenizer, vocab, "prompt:")
        rest = encode_one(completion, self.tokenizer, vocab, "completion:", continues=True)
        request = self.request([ids + rest], max_new_tokens=0)
        scores = compiled.score(
            self.program.target, request.tokens, request.length, chunk=self.prefill_chunk
        )
        return np.asarray(scores)[0, len(ids) : len(ids) + len(rest)].tolist()

    def warmup(self, *, batch: int = 1, length: int = 128) -> None:
        """Compile ``generate`` for ``batch`` prompts whose length and budget sum to ``length``."""
        _positive("batch", batch)
        length = min(_positive("length", length), self.max_length or length)
        request = self.request([[0] * length] * batch, max_new_tokens=0)
        jax.block_until_ready(compiled.generate(self.program, request, chunk=self.prefill_chunk))

    @property
    def rows_independent(self) -> bool:
        """Whether a row decodes the same alone and in any batch."""
        return self.program.drafter.rows_independent

    def encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        """Turn prompts into rows of token ids, as ``generate`` does."""
        return encode(prompts, self.tokenizer, self.program.target.vocab_size)

    def request(
        self, rows: list[list[int]], stop_token_ids: Sequence[int] | None = None, **settings: Any
    ) -> Request:
        """Check the settings of ``generate`` and lay a call out in arrays (``specjax.request``)."""
        own = getattr(self.tokenizer, "stop_ids", ())
        return build(
            rows,
            max_length=self.max_length,
            vocab_size=self.program.target.vocab_size,
            stop_token_ids=own if stop_token_ids is None else stop_token_ids,
            **settings,
        )

    def collect(self, request: Request, output: compiled.Output, **times: Any) -> Result:
        """Bring a finished call to the host; ``times`` go to its metrics."""
        output = jax.device_get(output)
        if (output.finish == RUNNING).any():
            raise RuntimeError("a row did not finish within its budget; please report this")
        begin, end = np.asarray(request.length), output.length
        spans = [slice(a, b) for a, b in zip(begin, end, strict=True)]
        tokens = [row[span].tolist() for row, span in zip(output.tokens, spans, strict=True)]
        return Result(
            tokens=tokens,
            texts=self._texts(tokens, request),
            finish_reasons=[FINISH_REASONS[int(code)] for code in output.finish],
            drafted=[row[span].tolist() for row, span in zip(output.drafted, spans, strict=True)],
            seeds=np.asarray(request.seeds).tolist(),
            metrics=Metrics.from_stats(output.stats, **times),
            row_metrics=[Metrics.from_stats(output.stats, row) for row in range(len(tokens))],
            exact=self.program.verifier.exact,
            rows_independent=self.rows_independent,
        )

    def _texts(self, tokens: list[list[int]], request: Request) -> list[str] | None:
        if self.tokenizer is None:
            return None
        stops = set(np.asarray(request.sampling.stop_ids)[0].tolist())
        shown = [row[:-1] if row and row[-1] in stops else row for row in tokens]
        return [self.tokenizer.decode(row) for row in shown]


def choose_verifier(verifier: str | Verifier | None, drafter: Any) -> Verifier:
    """Look a verifier up by name, or take the one that loses least for this kind of draft.

    >>> from specjax.drafters import NGram
    >>> choose_verifier(None, NGram(4))
    Coupled(coupled=True, exact=True, branching=True)
    """
    if verifier is None:
        if not drafter.samples:
            return Coupled()
        return Block() if drafter.num_nodes == drafter.depth else Token()
    if isinstance(verifier, str):
        if verifier not in VERIFIERS:
            raise ValueError(f"verifier: unknown {verifier!r}; known are {', '.join(VERIFIERS)}")
        return VERIFIERS[verifier]()
    if isinstance(verifier, type) or not hasattr(verifier, "accept"):
        raise ValueError(f"verifier: must be a name or a Verifier, got {verifier!r}")
    return verifier


def _check_pair(program: Program) -> None:
    """Refuse what would be biased or could not run, before anything is compiled."""
    target, drafter = program.target, program.drafter
    drafter.validate(target)
    if not program.is_chain and not program.verifier.branching:
        name = type(program.verifier).__name__.lower()
        raise ValueError(f"verifier: {name!r} judges chains only; use 'token' or 'coupled'")
    missing = [layer for layer in drafter.wants if not 0 <= layer < target.num_layers]
    if missing:
        raise ValueError(f"drafter: wants layers {missing}; the target has {target.num_layers}")


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
