"""Turns, warm runs and what is compared, with contestants that are told what to make."""

import itertools

import jax
import pytest

from specjax import Decoder
from specjax.bench.questions import Question
from specjax.bench.runner import Job, Ready, Row, jobs_of, num_programs, run, warm
from specjax.bench.streaming import stream_gaps
from specjax.bench.turns import Turn, groups_of
from specjax.bench.variants import PLAIN, PeerVariant, Variant, peer_variants_of, variants_of
from specjax.drafters import NGram
from specjax.testing import tiny_lm

PROMPT = [5, 6, 7, 5, 6, 7, 5]


@pytest.fixture(scope="module")
def target():
    return tiny_lm(jax.random.key(0))


def turn(question="q", category="chat", prompt=PROMPT, **settings):
    given = {"max_new_tokens": 12, "temperature": 0.0, "seed": 0, **settings}
    return Turn(Question(question, category, ("Hi",)), 1, prompt, given)


class Said:
    """A contestant that says its tokens and remembers when it was asked, and for how many."""

    def __init__(self, name, *rows, calls, metrics=None, coupled=False):
        self.asked = []
        self.ready = Ready(
            name,
            name,
            decode=lambda num: (calls.append(name), self.asked.append(num)),
            read=lambda _: [Row(row, "length", [False] * len(row), metrics) for row in rows],
            prefill=lambda: calls.append(f"{name} prefill"),
            coupled=coupled,
        )


def job_of(*said, turns=(), batch=1):
    (group,) = groups_of(turns or [turn()], batch)
    return Job(0.0, group, [one.ready for one in said])


def test_calls_take_turns_and_each_is_timed():
    calls = []
    job = job_of(Said("plain", [1, 2], calls=calls), Said("fast", [1, 2], calls=calls))
    # The clock is read around each call: A takes 1, 3 and 2 seconds, B always 5, prefills 7.
    clock = itertools.accumulate([0, 1, 0, 5, 0, 3, 0, 5, 0, 2, 0, 5, 0, 7, 0, 7])
    plain, fast = run(job, 3, clock=lambda: float(next(clock)))
    assert calls == ["plain", "fast"] * 3 + ["plain prefill", "fast prefill"]
    assert (plain.seconds, fast.seconds) == ([1, 3, 2], [5, 5, 5])
    assert (plain.median, plain.prefill_seconds) == (2, 7)


def test_every_program_is_warm_before_the_clock_starts():
    calls, ticks = [], []
    jobs = [job_of(Said("plain", [1], calls=calls), Said("fast", [1], calls=calls))] * 3
    warm(jobs, tick=lambda: ticks.append(1))
    assert calls == ["plain", "plain prefill", "fast", "fast prefill"]
    assert len(ticks) == num_programs(jobs) == 2


def test_tokens_unlike_plain_decodings_are_found():
    calls = []
    names = {"same": [1, 2, 3], "other": [1, 9, 3], "shorter": [1, 2]}
    job = job_of(*(Said(n, row, calls=calls) for n, row in {"plain": [1, 2, 3], **names}.items()))
    found = {record.contestant: record.answers[0].differs_at for record in run(job, 1)}
    assert found == {"plain": None, "same": None, "other": 1, "shorter": 2}


@pytest.mark.parametrize(
    ("temperature", "coupled", "must"), [(0.0, False, True), (1.0, False, False), (1.0, True, True)]
)
def test_draws_must_agree_where_they_are_plain_decodings_own(temperature, coupled, must):
    said = Said("plain", [1], calls=[], coupled=coupled)
    (record,) = run(job_of(said, turns=[turn(temperature=temperature)]), 1)
    assert record.answers[0].must_agree is must


def test_rows_that_fill_a_batch_are_marked():
    said = Said("plain", [1], [2], [1], calls=[])
    (record,) = run(job_of(said, turns=[turn("a"), turn("b")], batch=3), 1)
    assert [(a.question, a.repeated) for a in record.answers] == [
        ("a", False), ("b", False), ("a", True),
    ]  # fmt: skip


def test_kinds_of_tokens_are_counted_with_those_from_drafts():
    row = Row([4, 5, 6], "length", [True, False, True])
    ready = Ready("plain", "plain", lambda _: None, lambda _: [row])
    (group,) = groups_of([turn()], 1)

    def kinds_of(prompt, tokens):
        assert (prompt, tokens) == (PROMPT, [4, 5, 6])
        return ["digit", "digit", "other"]

    (record,) = run(Job(0.0, group, [ready]), 1, kinds_of)
    assert record.answers[0].kinds == {"digit": [1, 2], "other": [1, 1]}


class Parrot:
    """A peer that says one token again and again."""

    name = "parrot"

    def __init__(self):
        self.calls = []

    def generate(self, prompt, num, draft_length):
        self.calls.append((prompt, num, draft_length))
        return [7] * num


def test_decoders_and_peers_side_by_side(target):
    plain, fast = variants_of(target, ["ngram"], [3], [None], lambda _, length: NGram(length))
    peer = Parrot()
    peers = peer_variants_of([peer], [3])
    turns = [turn("a"), turn("b", prompt=[9, 8]), turn("c", temperature=1.0)]
    jobs = jobs_of([plain, fast], peers, turns, None, 1, 128)
    assert num_programs(jobs) == 4  # every prompt has the same capacity, so one for each
    warm(jobs)
    records = [record for job in jobs for record in run(job, 2)]
    names = [PLAIN, "ngram, K = 3", "parrot", "parrot, lookup, K = 3"]
    assert [r.contestant for r in records] == [*names, *names, *names[:2]]  # no peer at T = 1
    expected = plain.decoder.generate(PROMPT, max_new_tokens=12)
    assert records[0].answers[0].tokens == expected.tokens[0]
    assert all(r.answers[0].differs_at is None for r in records if r.contestant in names[:2])
    drafts = fast.decoder.generate(PROMPT, max_new_tokens=12)
    assert records[1].answers[0].outcomes == drafts.metrics.outcomes.tolist()
    assert records[1].answers[0].drafted == drafts.drafted[0]
    num = len(expected.tokens[0])
    assert peer.calls[-1] == ([9, 8], len(records[4].answers[0].tokens), 3)
    assert (PROMPT, num, None) in peer.calls
    assert records[2].answers[0].tokens == [7] * num


def test_a_batch_decodes_every_row_as_it_would_alone(target):
    variants = [Variant(PLAIN, Decoder(target)), Variant("n", Decoder(target, NGram(3)), 3)]
    turns = [turn("a"), turn("b", prompt=[9, 8], max_new_tokens=5, seed=1), turn("c", "qa")]
    jobs = jobs_of(variants, [PeerVariant("parrot", Parrot())], turns, 0.0, 2, 128)
    records = [record for job in jobs for record in run(job, 1)]
    assert [(r.contestant, r.category, r.batch) for r in records] == [
        (PLAIN, "chat", 2), ("n", "chat", 2), (PLAIN, "qa", 2), ("n", "qa", 2),
    ]  # fmt: skip
    alone = variants[0].decoder.generate([9, 8], max_new_tokens=5)
    assert records[1].answers[1].tokens == alone.tokens[0]


def test_names_tell_variants_apart(target):
    def make(name, length):
        return NGram(length)

    some = variants_of(target, ["ngram", "none"], [2, 4], ["token", "coupled"], make)
    assert [variant.name for variant in some] == [
        "plain",
        *("ngram, K = 2, token", "ngram, K = 2, coupled"),
        *("ngram, K = 4, token", "ngram, K = 4, coupled"),
    ]
    assert [variant.verifier for variant in some[1:3]] == ["token", "coupled"]
    with pytest.raises(ValueError, match="--drafter: ngram is given twice"):
        variants_of(target, ["ngram", "ngram"], [4], [None], make)


def test_a_stream_hands_out_bursts(target):
    variant = Variant("n", Decoder(target, NGram(3)), 3)
    turns = [turn(), turn(prompt=[9, 8], max_new_tokens=5)]
    gaps = stream_gaps(variant, turns, 128)
    metrics = [
        variant.decoder.generate(t.prompt, max_new_tokens=t.settings["max_new_tokens"]).metrics
        for t in turns
    ]
    assert sum(size * num for size, num in gaps.bursts.items()) == sum(
        m.num_tokens for m in metrics
    )
    assert sum(gaps.bursts.values()) == sum(m.num_rounds for m in metrics)
    assert 0 <= gaps.p50 <= gaps.p99
