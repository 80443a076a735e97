"""Trees drawn from a draft model: its cache keeps the accepted path, and nothing else."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import loop, rng
from specjax.drafters import DraftModel
from specjax.drafters.draft_tree import DraftTree
from specjax.loop import Program
from specjax.models import LayerKind
from specjax.models.rope import Rope
from specjax.testing import TableLM, tiny_lm
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, sampling_values, sequence_counts
from specjax.testing.target_checks import pass_over
from specjax.verify import Coupled, Token

BRANCHING = (2, 2, 1)
K, N = 3, 10
ROUNDS = 300
TARGET, OTHER = (TableLM.random(jax.random.key(i), 6) for i in (0, 1))
CLOSE = TableLM(TARGET.table + 0.5 * OTHER.table)
PROMPTS = [[1], [2, 3, 4, 5, 1, 2], [5] * 13, [0], [4, 1], [3, 3, 2]]
GREEDY_AND_SAMPLED = sampling_values(6).replace(temperature=jnp.asarray([0, 0, 0, 1.0, 1, 1]))


# All tests share these two: a program of the same structure is compiled once.


@partial(jax.jit, static_argnames="budget")
def begin(program, tokens, length, *, budget):
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=GREEDY_AND_SAMPLED,
        key=rng.row_keys(jnp.arange(6, dtype=jnp.uint32)),
        limit=length + budget,
        chunk=16,
    )
    return loop.prefill(program, state, chunk=4)


run_rounds = jax.jit(loop.advance)


def started(program, budget=ROUNDS * (K + 1)):
    tokens = np.zeros((6, 13 + budget), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    length = jnp.asarray([len(p) for p in PROMPTS], jnp.int32)
    return begin(program, jnp.asarray(tokens), length, budget=budget)


def with_cap(state, cap):
    return state.replace(cap=jnp.resize(jnp.asarray(cap, jnp.int32), 6))


def test_sizes_of_a_tree():
    drafter = DraftTree(OTHER, BRANCHING)
    assert (drafter.depth, drafter.num_nodes, drafter.tree_depth) == (K, N, K)
    chain = DraftTree(OTHER, [1, 1])
    assert (chain.depth, chain.num_nodes) == (2, 2)


def always_right(target):
    """Rounds in which every row accepts a path of full depth, all in one call."""
    program = Program(target, DraftTree(target, BRANCHING, catch_up=4), Token())
    state = run_rounds(program, started(program), ROUNDS)
    want = np.zeros((K + 1, K + 1))
    want[K, K] = ROUNDS
    np.testing.assert_array_equal(state.stats.outcomes, np.broadcast_to(want, (6, K + 1, K + 1)))
    # The last token of a path is never fed: that far the cache lags, and no further.
    assert (state.context.length - state.drafter.synced).tolist() == [2] * 6


LARGE, ANOTHER = (tiny_lm(jax.random.key(i), vocab_size=6, max_length=None) for i in (3, 4))
NEAR = jax.tree.map(lambda x, y: 0.8 * x + 0.2 * y, LARGE, ANOTHER)


def test_a_real_decoder_that_drafts_for_itself_is_always_right():
    """Greedy rows and sampled ones, from prompts of one token and of many, hundreds of rounds."""
    always_right(LARGE)


def test_the_draft_cache_equals_a_fresh_prefill():
    program = Program(LARGE, DraftTree(NEAR, BRANCHING, catch_up=4), Token())
    state = run_rounds(program, started(program), 12)
    assert (state.stats.outcomes[:, :, 1:].sum((1, 2)) > 0).all()
    context, own = state.context, state.drafter
    empty = NEAR.init_cache(6, 64)
    _, fresh = pass_over(NEAR, context.tokens[:, :63], 0 * own.synced, empty, own.synced)
    tokens = context.window(own.synced, 2)
    ours, _ = pass_over(NEAR, tokens, own.synced, own.cache)
    theirs, _ = pass_over(NEAR, tokens, own.synced, fresh)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
def test_rings_that_drafted_for_themselves_are_always_right():
    kinds = [LayerKind(Rope(8), 6), LayerKind(Rope(8))]
    always_right(tiny_lm(jax.random.key(3), vocab_size=6, layers=kinds, max_length=None))


WIDTHS = (0, 2, 6)
PROGRAM = Program(TARGET, DraftTree(CLOSE, BRANCHING, catch_up=4), Token(), widths=WIDTHS)


def test_the_cache_holds_nothing_but_committed_tokens():
    """Through rejections, paths that move, and caps of all sizes."""
    state, generator = started(PROGRAM), np.random.default_rng(0)
    moved = 0
    for _ in range(40):
        # Widths of all sizes, too: a pass feeds no more than the longest draft.
        before, cap = np.asarray(state.context.length), generator.integers(0, K + 1, 6)
        cap = np.minimum(cap, generator.integers(0, K + 1))
        state = run_rounds(PROGRAM, with_cap(state, cap), 1)
        tokens, length = (np.asarray(x) for x in (state.context.tokens, state.context.length))
        first = tokens[np.arange(6), before]
        moved += ((length - before > 1) & (first != np.asarray(state.drafter.fed)[:, 0])).sum()
        place, synced = np.arange(tokens.shape[1]), np.asarray(state.drafter.synced)
        assert (synced < length).all()
        assert (length - synced)[cap > 0].max(initial=0) <= 2
        within = place < synced[:, None]
        for cached, text in (
            (state.drafter.cache.tokens, tokens),
            (state.drafter.cache.positions, np.broadcast_to(place, within.shape)),
        ):
            ours = np.asarray(cached)[:, : place.size]
            np.testing.assert_array_equal(ours[within], text[within])
    assert moved > 10
    assert (state.stats.outcomes.sum((0, 1)) > 0).all()  # all acceptances from 0 to K occurred


def test_rows_that_did_not_draft_for_a_while_catch_up():
    """Row i does not draft in rounds 1..i; every draft of its own is fully accepted."""
    program = Program(TARGET, DraftTree(TARGET, BRANCHING, catch_up=4), Token(), widths=WIDTHS)
    state = started(program)
    for number in range(8):
        cap = np.where((number > 0) & (number <= np.arange(6)), 0, K)
        before = state.stats.outcomes
        state = run_rounds(program, with_cap(state, cap), 1)
        gained = np.asarray(state.stats.outcomes - before)
        assert [gained[row, c, c] for row, c in enumerate(cap)] == [1] * 6


@pytest.mark.parametrize(
    "verifier",
    [Token(), pytest.param(Coupled(), marks=pytest.mark.slow)],
    ids=["token", "coupled"],
)
def test_a_tree_of_width_one_is_the_chain_of_a_draft_model(verifier):
    states = [
        run_rounds(program, started(program), 12)
        for drafter in (DraftTree(CLOSE, (1,) * K, catch_up=4), DraftModel(CLOSE, K, catch_up=4))
        for program in [Program(TARGET, drafter, verifier)]
    ]
    jax.tree.map(np.testing.assert_array_equal, *(x.context for x in states))
    jax.tree.map(np.testing.assert_array_equal, *(x.stats for x in states))
    assert (states[0].stats.outcomes.sum((0, 1)) > 0).all()
    np.testing.assert_array_equal(*(x.drafter.synced for x in states))


SMALL, DRAFT = (TableLM.random(jax.random.key(i), 4) for i in (4, 5))


def test_a_sampled_tree_keeps_the_law():
    prompt, rows = [1, 2, 1], 20_000
    program = Program(SMALL, DraftTree(DRAFT, (2, 1)), Token())
    law = sequence_law(SMALL, prompt, 4, sampling_values(1))
    assert chi_square_p(sequence_counts(program, prompt, 4, rows), law) > 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DraftTree(OTHER, ()), "branching: must be"),
        (lambda: DraftTree(OTHER, (2, 0)), r"branching: must be .* got \(2, 0\)"),
        (lambda: DraftTree(OTHER, catch_up=0), "catch_up: must be at least 1"),
        (lambda: DraftTree(OTHER, (7,)).validate(TARGET), "branching: 7 children .* has 6"),
        (lambda: DraftTree(SMALL).validate(TARGET), r"drafter: .* 4 tokens, the target 6"),
        (lambda: DraftTree("tiny").validate(TARGET), "model: must be a Target"),
    ],
)
def test_what_cannot_be_drafted_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
