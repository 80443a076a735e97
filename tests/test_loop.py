"""Rounds through the jitted loop: where rows end, what they count, and what leaves them alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hand_drafters import Branching, Scripted, counting_lm

from specjax import loop, rng, sampling
from specjax.drafters import DraftModel, NGram, Plain
from specjax.loop import Program
from specjax.metrics import Metrics
from specjax.testing import TableLM
from specjax.testing.statistics import chi_square_p, sampling_values, sequence_counts
from specjax.types import DEAD_END, OUT_OF_BUDGET, RUNNING, STOPPED
from specjax.verify import Coupled, Token

V, K, L = 8, 3, 24
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM(TARGET.table + 0.5 * TableLM.random(jax.random.key(1), V).table)
NONE = (-1, -1)


@partial(jax.jit, static_argnames="chunk")
def begin(program, tokens, length, limit, stop_ids, cap, temperature, seeds, chunk=4):
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=sampling_values(len(length)).replace(
            temperature=temperature, stop_ids=stop_ids
        ),
        key=rng.row_keys(seeds),
        limit=limit,
        cap=cap,
    )
    return loop.prefill(program, state, chunk=chunk)


finish = jax.jit(loop.advance)


def started(program, prompts, budget, stop_ids=NONE, cap=K, temperature=0.0, seeds=None):
    """A prefilled batch; every setting is one value or one a row."""
    batch = len(prompts)
    tokens = np.zeros((batch, L), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    length = np.array([len(p) for p in prompts], np.int32)
    return begin(
        program,
        jnp.asarray(tokens),
        jnp.asarray(length),
        jnp.asarray(length + np.asarray(budget, np.int32)),
        jnp.asarray(np.broadcast_to(np.asarray(stop_ids, np.int32), (batch, 2))),
        jnp.asarray(np.broadcast_to(np.asarray(cap, np.int32), batch)),
        jnp.asarray(np.broadcast_to(np.asarray(temperature, np.float32), batch)),
        jnp.asarray(np.arange(batch) if seeds is None else seeds, jnp.uint32),
    )


def decoded(program, prompts, budget, **settings):
    return finish(program, started(program, prompts, budget, **settings), 99)


def continuations(state, prompts):
    """Tokens after each prompt."""
    rows = zip(
        np.asarray(state.context.tokens), prompts, np.asarray(state.context.length), strict=True
    )
    return [row[len(prompt) : length].tolist() for row, prompt, length in rows]


def cut(tokens, stop_ids, budget):
    """What a row should emit, and how it ends: the stop wins where it comes first."""
    for index, token in enumerate(tokens[:budget]):
        if token in stop_ids:
            return tokens[: index + 1], STOPPED
    return tokens[:budget], OUT_OF_BUDGET


# A target that counts and drafts written by hand: every outcome is known.

# (budget, stop ids, script after the prompt [0]) and the tokens, the end and, of each round, how
# much was judged and how much of that was kept.
RIGHT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]
ENDINGS = {
    "stop inside an accepted run": (9, (2, -1), RIGHT, [1, 2], STOPPED, [(1, 1)]),
    "stop as the bonus token": (9, (4, -1), RIGHT, [1, 2, 3, 4], STOPPED, [(3, 3)]),
    "stop as the correction": (9, (2, -1), [1, 5, 5], [1, 2], STOPPED, [(3, 1)]),
    "drafted stop that was rejected": (4, (5, -1), [5, 5, 5], [1, 2, 3, 4], OUT_OF_BUDGET, None),
    "the first of several stop ids": (9, (7, 3), RIGHT, [1, 2, 3], STOPPED, [(2, 2)]),
    "stop and budget at one place": (2, (2, -1), RIGHT, [1, 2], STOPPED, [(1, 1)]),
    "budget before the stop": (2, (3, -1), RIGHT, [1, 2], OUT_OF_BUDGET, [(1, 1)]),
    "budget inside the second run": (6, NONE, RIGHT, RIGHT[:6], OUT_OF_BUDGET, [(3, 3), (1, 1)]),
    "budget at a round's end": (8, NONE, RIGHT, RIGHT[:8], OUT_OF_BUDGET, [(3, 3), (3, 3)]),
    "budget of one": (1, NONE, RIGHT, [1], OUT_OF_BUDGET, [(0, 0)]),
    "no budget": (0, (1, -1), RIGHT, [], OUT_OF_BUDGET, []),
    "no drafts": (3, (3, -1), [-1] * 9, [1, 2, 3], STOPPED, [(0, 0)] * 3),
    "a short draft": (3, NONE, [1] + [-1] * 9, [1, 2, 3], OUT_OF_BUDGET, [(1, 1), (0, 0)]),
}


@pytest.fixture(scope="module")
def endings():
    cases = list(ENDINGS.values())
    script = np.full((len(cases), L), -1, np.int32)
    for row, case in enumerate(cases):
        script[row, 1 : 1 + len(case[2])] = case[2]
    program = Program(counting_lm(V), Scripted(jnp.asarray(script), K), Token())
    return decoded(
        program,
        [[0]] * len(cases),
        [case[0] for case in cases],
        stop_ids=[case[1] for case in cases],
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_rows_end_where_they_should_and_count_what_they_emit(endings, name):
    row = list(ENDINGS).index(name)
    _, _, _, tokens, end, outcomes = ENDINGS[name]
    length = int(endings.context.length[row])
    assert endings.context.tokens[row, 1:length].tolist() == tokens
    assert endings.finish[row] == end
    assert not endings.context.tokens[row, length:].any()  # nothing was written past the end
    metrics = Metrics.from_stats(endings.stats, row)
    assert metrics.num_tokens == len(tokens)
    if outcomes is not None:
        want = np.zeros((K + 1, K + 1), int)
        for outcome in outcomes:
            want[outcome] += 1
        np.testing.assert_array_equal(metrics.outcomes, want)


def test_tokens_from_accepted_drafts_are_marked(endings):
    row = list(ENDINGS).index("budget inside the second run")
    assert endings.drafted[row, 1:7].tolist() == [True, True, True, False, True, True]
    row = list(ENDINGS).index("stop as the correction")
    assert endings.drafted[row, 1:3].tolist() == [True, False]


def test_verified_tokens_that_were_cut_are_counted(endings):
    names = [
        "stop inside an accepted run",
        "budget inside the second run",
        "stop as the bonus token",
    ]
    rows = jnp.asarray([list(ENDINGS).index(n) for n in names])
    assert endings.stats.clipped[rows].tolist() == [2, 2, 0]


# Random targets: what comes out is what plain decoding gives.

PROMPTS = [[1], [2, 3, 2, 3, 2], [5] * 9, [0, 7], [4, 1, 4, 1], [3], [6, 6, 5], [2, 2]]
BUDGETS = [15, 15, 14, 1, 0, 9, 13, 7]
STOPS = [(3, 5), NONE, (0, -1), (1, 2), NONE, (6, -1), (7, 4), (2, -1)]
DRAFTERS = {"ngram": NGram(K), "draft_model": DraftModel(DRAFT, K)}
VERIFIERS = {"token": Token(), "coupled": Coupled()}
PAIRS = [
    (d, v)
    for d in DRAFTERS
    for v in VERIFIERS
    if v == "coupled" or (d, v) == ("draft_model", "token")
]


@pytest.fixture(scope="module")
def plain():
    """Plain decoding without stops: greedy in every row, and sampled in every row."""
    program = Program(TARGET, Plain(), Coupled())
    return {
        t: continuations(decoded(program, PROMPTS, 15, temperature=t), PROMPTS) for t in (0.0, 1.0)
    }


def expect_plain(state, plain, temperatures):
    for row, out in enumerate(continuations(state, PROMPTS)):
        whole = plain[temperatures[row]][row]
        tokens, end = cut(whole, STOPS[row], BUDGETS[row])
        assert (out, int(state.finish[row])) == (tokens, end), f"row {row}"


@pytest.mark.parametrize(("drafter", "verifier"), PAIRS)
def test_greedy_text_is_that_of_plain_decoding(plain, drafter, verifier):
    program = Program(TARGET, DRAFTERS[drafter], VERIFIERS[verifier])
    state = decoded(program, PROMPTS, BUDGETS, stop_ids=STOPS)
    expect_plain(state, plain, [0.0] * 8)
    assert state.drafted.any()


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_coupled_text_is_that_of_plain_sampling_whatever_the_caps(plain, drafter):
    program = Program(TARGET, DRAFTERS[drafter], Coupled())
    temperatures = [0.0, 1.0] * 4
    for cap in (K, np.arange(8) % (K + 1)):
        state = decoded(
            program, PROMPTS, BUDGETS, stop_ids=STOPS, cap=cap, temperature=temperatures
        )
        expect_plain(state, plain, temperatures)


MIXED = {"stop_ids": STOPS, "temperature": [1.0, 0.0] * 4, "cap": [3, 2, 1, 3, 3, 3, 0, 3]}


def expect_same_rows(state, rows, other):
    """Row i of ``state`` is row rows[i] of ``other``, counters included."""
    for name in ("context", "finish", "drafted", "stats"):
        pairs = zip(*(jax.tree.leaves(getattr(s, name)) for s in (state, other)), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, np.asarray(b)[rows], err_msg=name)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_row_is_the_same_among_other_neighbours(verifier):
    program = Program(TARGET, DRAFTERS["draft_model"], VERIFIERS[verifier])
    batch = decoded(program, PROMPTS, BUDGETS, **MIXED)
    rows = np.array([7, 0, 3, 0, 5, 2, 2, 1])  # another order, some rows twice, some not at all
    moved = {name: np.asarray(value)[rows] for name, value in MIXED.items()}
    prompts = [PROMPTS[row] for row in rows]
    other = decoded(program, prompts, np.asarray(BUDGETS)[rows], seeds=rows, **moved)
    expect_same_rows(other, rows, batch)


def test_a_cap_bounds_each_rows_drafts():
    program = Program(TARGET, DRAFTERS["draft_model"], Token())
    caps = [0, 1, 2, 3, 9, 0, 1, 2]
    state = decoded(program, PROMPTS, 14, cap=caps, temperature=1.0)
    for row, cap in enumerate(caps):
        metrics = Metrics.from_stats(state.stats, row)
        lengths = np.flatnonzero(metrics.draft_length_histogram)
        assert lengths.max() == min(cap, K)
        assert metrics.num_draft_tokens <= min(cap, K) * metrics.num_rounds
        assert metrics.num_tokens == 14


def small_leaves(state):
    """All that a row owns but its cache, which may hold anything in its scratch slots."""
    drafter = (state.drafter.synced, state.drafter.fed)
    return [
        np.asarray(x) for x in jax.tree.leaves(state.replace(cache=(), key=(), drafter=drafter))
    ]


def test_every_round_of_an_active_row_adds_a_token_and_leaves_finished_rows_alone():
    program = Program(TARGET, DRAFTERS["draft_model"], Token())
    state = started(program, PROMPTS, BUDGETS, stop_ids=STOPS, temperature=1.0)
    for _ in range(max(BUDGETS)):
        before, state = state, finish(program, state, 1)
        active = np.asarray(before.finish == RUNNING)
        added = np.asarray(state.context.length - before.context.length)
        assert (added[active] >= 1).all()
        assert (added[~active] == 0).all()
        for old, new in zip(*map(small_leaves, (before, state)), strict=True):
            np.testing.assert_array_equal(old[~active], new[~active])
    assert (state.finish != RUNNING).all()


def test_advancing_a_few_rounds_at_a_time_changes_nothing():
    program = Program(TARGET, DRAFTERS["draft_model"], Token())
    whole = decoded(program, PROMPTS, BUDGETS, stop_ids=STOPS, temperature=1.0)
    state = started(program, PROMPTS, BUDGETS, stop_ids=STOPS, temperature=1.0)
    for num in (0, 2, 1, 99):
        state = finish(program, state, num)
    np.testing.assert_array_equal(whole.context.tokens, state.context.tokens)
    jax.tree.map(np.testing.assert_array_equal, whole.stats, state.stats)


# Dead ends.


@struct.dataclass
class Fence:
    """Forbids every token once a row is ``at`` tokens long."""

    at: int = struct.field(pytree_node=False, default=6)

    def init(self, tokens, length, row):
        return length

    def advance(self, h, token):
        return h + 1

    def apply(self, logits, h, row):
        return jnp.where(h >= self.at, -jnp.inf, logits)


FENCED = (*sampling.FILTERS, Fence(6))


def test_a_row_with_no_allowed_token_ends_and_never_emits_token_zero():
    """Prompt lookup drafts zeros, and zero is also what the argmax of nothing would be."""
    zeros = TableLM(jnp.zeros((V, V, V)).at[..., 0].set(4.0))
    prompts = [[0] * 3, [0] * 6, [0] * 3]
    program = Program(zeros, NGram(K), Coupled(), FENCED)
    state = decoded(program, prompts, [9, 9, 2], temperature=[0.0, 1.0, 0.0])
    assert state.finish.tolist() == [DEAD_END, DEAD_END, OUT_OF_BUDGET]
    assert state.context.length.tolist() == [6, 6, 5]


# A branching tree that wants three layers: the types beyond the chain.


@pytest.fixture(scope="module", params=[Token(), Coupled()], ids=["token", "coupled"])
def tree_run(request):
    program = Program(TARGET, Branching(DRAFT.table), request.param)
    temperature = [0.0, 1.0] * 4 if request.param.coupled else 0.0
    return decoded(program, PROMPTS, BUDGETS, stop_ids=STOPS, temperature=temperature), temperature


def test_a_tree_gives_the_tokens_of_plain_decoding(plain, tree_run):
    state, temperature = tree_run
    expect_plain(state, plain, np.broadcast_to(temperature, 8))
    assert (state.stats.outcomes.sum((0, 1)) > 0)[:3].all()  # all acceptances, 0 to the depth


def test_every_committed_token_is_observed_once_with_its_own_features(tree_run):
    state, _ = tree_run
    length, limit = np.asarray(state.context.length), np.asarray(BUDGETS)
    for row in np.flatnonzero(limit):
        last = length[row] - 1  # the newest token is fed in the round that never came
        tokens = np.asarray(state.context.tokens)[row, :last]
        seen = state.drafter
        assert seen.times[row].tolist() == [1] * last + [0] * (len(seen.times[row]) - last)
        np.testing.assert_array_equal(seen.tokens[row, :last], tokens)
        hidden = np.stack([np.append(0, tokens)[:-1], tokens], axis=-1)
        runs = [np.insert(hidden, 2, n, axis=1) for n in (1, 2, 3)]
        features = np.concatenate(runs, axis=-1)
        np.testing.assert_array_equal(seen.features[row, :last], features)


def test_a_row_that_never_ran_shows_the_drafter_nothing(tree_run):
    state, _ = tree_run
    assert not state.drafter.times[BUDGETS.index(0)].any()


def test_feedback_brings_the_targets_argmax_at_every_fed_node():
    program = Program(TARGET, Branching(DRAFT.table), Token())
    state = started(program, PROMPTS, 9)
    before = state.context
    after = finish(program, state, 1)
    for row in range(8):
        length = int(before.length[row])
        newest = int(before.tokens[row, length - 1])
        previous = int(before.tokens[row, length - 2]) if length > 1 else 0
        fed = after.drafter.fed[row].tolist()
        pairs = [(previous, newest)]
        pairs += [(newest, fed[0]), (newest, fed[1]), (fed[0], fed[2]), (fed[1], fed[3])]
        assert after.drafter.top[row].tolist() == [int(TARGET.table[p].argmax()) for p in pairs]


@pytest.mark.slow  # tests/test_draft_tree.py has the law of a tree as well
def test_a_sampled_tree_without_replacement_keeps_the_law():
    target, draft = (TableLM.random(jax.random.key(i), 3) for i in (4, 5))
    program = Program(target, Branching(draft.table), Token())
    p = np.asarray(jax.nn.softmax(target.table / 0.8), np.float64)
    law = np.einsum("a,ab,abc,bcd->abcd", p[2, 1], p[1], p, p)  # after the prompt 1, 2, 1
    values = sampling_values(10_000, temperature=0.8)
    counts = sequence_counts(program, [1, 2, 1], 4, 10_000, values=values)
    assert chi_square_p(counts, law) > 1e-6
