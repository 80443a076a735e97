"""The runs that the checks look at: plain, drafted and self-drafted, on the same rows and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import compiled
from specjax.check.panel import Panel
from specjax.check.watch import Log, watch
from specjax.drafters import DraftModel
from specjax.program import Program
from specjax.protocols import Verifier
from specjax.request import Request
from specjax.testing.drafter_checks import verifiers
from specjax.types import State
from specjax.verify import Block, Coupled, Token

SELF_RULES: tuple[Verifier, ...] = (Token(), Block())


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run, all on the host but its last state; ``rows`` are those of one verifier."""

    state: State
    log: Log
    tokens: np.ndarray
    rows: np.ndarray


class Runs:
    """Runs of one pair, each made when first asked for: same rows, seeds, budget and shapes.

    Args:
        program: target, drafter, processors, and the verifier that the user chose.
        rows: what is decoded; of each text some rows are greedy and some are not.
        group: which rows belong together; ratio rules share a run, and take the groups in turn.
        chunk: positions a prefill pass.
        note: told what is being run.
    """

    def __init__(
        self,
        program: Program,
        rows: Request,
        group: np.ndarray,
        *,
        chunk: int,
        note: Callable[[str], None],
    ) -> None:
        self.program, self.rows, self.group = program, rows, group
        self.chunk, self.note = chunk, note
        self.greedy = np.asarray(rows.sampling.temperature) == 0
        self.budget = int(rows.limit[0] - rows.length[0])
        self.rules = judges(program)
        self._begun: dict[str, State] = {}
        self._made: dict[tuple[str, str], tuple[State, Log]] = {}

    def plain(self) -> Run:
        """Plain decoding, by the drafted run's own program with no draft allowed."""
        return self._run("plain", self.program, Coupled(), ())

    def drafted(self, verifier: Verifier) -> Run:
        """The pair itself."""
        return self._run("drafted", self.program, verifier, self.rules)

    def itself(self, verifier: Verifier) -> Run:
        """The target drafting for itself."""
        drafter = DraftModel(self.program.target, self.program.drafter.depth)
        program = dataclasses.replace(self.program, drafter=drafter)
        return self._run("self-drafted", program, verifier, SELF_RULES)

    def begin(self, rows: Request) -> State:
        """Allocate and prefill; the verifier has no part in it, so one program serves all."""
        return self._begin(self.program, rows)

    def watch(self, program: Program, state: State, rounds: int) -> tuple[State, Log]:
        """Run some rounds, in the program of every other run of this verifier."""
        return watch(program, state, jnp.asarray(rounds, jnp.int32), size=self.budget)

    def judged_by(self, verifier: Verifier, *, alone: bool = False) -> Program:
        """The pair under a verifier; under ratio rules the groups in turn, or one ``alone``."""
        judge, _ = self._judge(verifier, self.rules, alone)
        return dataclasses.replace(self.program, verifier=judge)

    def _judge(self, verifier: Verifier, rules: Sequence[Verifier], alone: bool = False):
        """What judges, and which rows are the verifier's."""
        if verifier.coupled:
            return verifier, np.ones(len(self.group), bool)
        ratio = tuple(rule for rule in rules if not rule.coupled)
        at = [rule_name(rule) for rule in ratio].index(rule_name(verifier))
        choice = np.full_like(self.group, at) if alone else self.group % len(ratio)
        return Panel(ratio, jnp.asarray(choice, jnp.int32)), choice == at

    def _begin(self, program: Program, rows: Request) -> State:
        program = dataclasses.replace(program, verifier=Token())
        return compiled.begin(program, rows, chunk=self.chunk)

    def _run(
        self, kind: str, program: Program, verifier: Verifier, rules: Sequence[Verifier]
    ) -> Run:
        judge, rows = self._judge(verifier, rules)
        at = kind, rule_name(judge)
        if at not in self._made:
            self.note(f"running {self.budget} tokens a row, {kind}, under {names(judge)}")
            program = dataclasses.replace(program, verifier=judge)
            if kind not in self._begun:
                begun = self._begin(program, self.rows)
                cap = 0 * begun.cap if kind == "plain" else begun.cap
                self._begun[kind] = dataclasses.replace(begun, cap=cap)
            state, log = self.watch(program, self._begun[kind], self.budget)
            self._made[at] = state, jax.device_get(log)
        state, log = self._made[at]
        return Run(state, log, np.asarray(state.context.tokens), rows)


def judges(program: Program) -> list[Verifier]:
    """The shipped verifiers that may judge this drafter, and the chosen one; exact ones only."""
    shipped, chosen = verifiers(program.drafter), program.verifier
    both = shipped if any(type(v) is type(chosen) for v in shipped) else [*shipped, chosen]
    return [v for v in both if v.exact]


def rule_name(verifier: Verifier) -> str:
    """What a verifier is called in a report."""
    return type(verifier).__name__.lower()


def names(judge: Verifier) -> str:
    """The verifiers of a run."""
    rules = judge.rules if isinstance(judge, Panel) else (judge,)
    return " and ".join(map(rule_name, rules))
