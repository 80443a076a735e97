"""What each candidate brings on the prompts: replayed where it reads text alone, else decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from tqdm.auto import tqdm

from specjax import loop, rng
from specjax.api import Decoder
from specjax.bench.costs import propose_and_append
from specjax.bench.replay import Recording, replay
from specjax.metrics import Metrics, ratio
from specjax.program import Program
from specjax.protocols import Feedback, Policy
from specjax.settings import Settings
from specjax.tuning.costs import RoundCosts
from specjax.tuning.families import Family
from specjax.types import Sampling
from specjax.verify import Coupled


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate, and what it would bring here.

    ``index`` is the drafter's place in the list given, None for plain decoding. ``widths`` are the
    numbers of draft nodes that passes are compiled for. ``draft_cost`` (c) is the time of one draft
    token and ``pass_cost`` (v) that of a pass over all ``num_nodes``, both over a plain pass's;
    c of a drafter that searches once a round is that of the search over K.
    """

    name: str
    index: int | None
    draft_length: int
    num_nodes: int
    widths: tuple[int, ...]
    adaptive: bool
    tokens_per_pass: float
    draft_cost: float
    pass_cost: float
    speedup: float

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Trial:
        """The trial whose ``dataclasses.asdict`` was saved."""
        floats = ("tokens_per_pass", "draft_cost", "pass_cost", "speedup")
        values = {name: float(saved[name]) for name in floats}
        return cls(**{**saved, "widths": tuple(saved["widths"]), **values})

    @classmethod
    def plain(cls) -> Trial:
        """Plain decoding, which all are measured against."""
        return cls("plain", None, 0, 0, (0,), False, 1.0, 0.0, 1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Texts:
    """Prompts with what plain decoding adds to them, and the settings it was decoded with."""

    prompts: list[list[int]]
    texts: list[list[int]]
    settings: Settings

    @classmethod
    def decode(cls, target: Any, prompts: list[list[int]], settings: Settings) -> Texts:
        """Decode all prompts plainly."""
        tokens = Decoder(target).generate(prompts, **settings).tokens
        texts = [prompt + added for prompt, added in zip(prompts, tokens, strict=True)]
        return cls(prompts, texts, settings)

    def metrics(
        self, program: Program, policy: Policy | None, *, replayed: bool
    ) -> Sequence[Metrics]:
        """What the drafter's rounds keep of its drafts, for each prompt."""
        target, drafter = program.target, program.drafter
        if replayed:
            begins = [len(prompt) for prompt in self.prompts]
            size = target.vocab_size
            return replay(self.texts, begins, drafter, vocab_size=size, policy=policy)
        decoder = Decoder(target, drafter, policy=policy, widths=program.widths)
        return decoder.generate(self.prompts, **self.settings).row_metrics


def run_trials(
    target: Any, families: Sequence[Family], costs: Sequence[RoundCosts], texts: Texts
) -> list[Trial]:
    """All candidates, the fastest first; plain decoding is one of them.

    Each member is tried with drafts of its own length, and the longest with lengths that adapt.
    """
    trials = [Trial.plain()]
    for family, length, adaptive in tqdm(
        list(_candidates(families)), desc="trials", disable=None, leave=False
    ):
        cost = costs[families.index(family)]
        program = family.program(target, length, adaptive=adaptive)
        trials.append(_trial(family, length, program, cost, texts, adaptive=adaptive))
    return sorted(trials, key=lambda trial: -trial.speedup)


def _candidates(families: Sequence[Family]) -> Iterator[tuple[Family, int, bool]]:
    for family in families:
        yield from ((family, length, False) for length in family.members)
        if family.adapts:
            yield family, family.longest, True


def _trial(
    family: Family, length: int, program: Program, cost: RoundCosts, texts: Texts, *, adaptive: bool
) -> Trial:
    policy = cost.policy(program) if adaptive else None
    rows = texts.metrics(program, policy, replayed=reads_text_alone(program.drafter))
    num_tokens = sum(row.num_tokens for row in rows)
    spent = sum(cost.spent(row, program, adaptive=adaptive) for row in rows)
    num_nodes = program.drafter.num_nodes
    return Trial(
        name=family.name,
        index=family.index,
        draft_length=length,
        num_nodes=num_nodes,
        widths=program.passes,
        adaptive=adaptive,
        tokens_per_pass=ratio(num_tokens, sum(row.num_rounds for row in rows)),
        draft_cost=cost.draft / (1 if cost.per_token else program.drafter.depth),
        pass_cost=cost.passes[num_nodes],
        speedup=ratio(num_tokens, spent),
    )


class _AskedError(Exception):
    """A drafter ran the target."""


@struct.dataclass
class Unasked(Recording):
    """A target that no one is to run."""

    def extend(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise _AskedError

    def embed(self, tokens: Any) -> Any:
        """Refuse."""
        raise _AskedError

    def unembed(self, hidden: Any) -> Any:
        """Refuse."""
        raise _AskedError


def reads_text_alone(drafter: Any) -> bool:
    """Whether drafts are point masses that come of the text and of no target.

    Then a replay is exact. A recording must not be asked for drafts: it knows what comes.

    >>> from specjax.drafters import EarlyExit, Lookahead, NGram
    >>> [reads_text_alone(drafter) for drafter in (NGram(4), EarlyExit(1), Lookahead())]
    [True, False, False]
    """
    if drafter.samples or drafter.wants or isinstance(drafter, Feedback):
        return False
    program = Program(Unasked(jnp.zeros((1, 64), jnp.int32), 8), drafter, Coupled())

    def drafts() -> Any:
        state = loop.start(
            program,
            program.target.text,
            jnp.full(1, 2, jnp.int32),
            sampling_values=Sampling.of(1),
            key=rng.row_keys(jnp.zeros(1, jnp.uint32)),
            limit=jnp.full(1, 32, jnp.int32),
        )
        return propose_and_append(program, state)

    try:
        jax.eval_shape(drafts)
    except _AskedError:
        return False
    return True
