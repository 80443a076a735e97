"""Lookahead: the pool, one round by hand, and that the window never changes a token."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_drafters import counting_lm

from specjax import loop, rng, tree
from specjax.drafters import Plain
from specjax.drafters.lookahead import Lookahead, Pool, shared_prefixes
from specjax.loop import Program
from specjax.request import aligned
from specjax.testing import tiny_lm
from specjax.testing.statistics import decode, sampling_values
from specjax.testing.target_checks import pass_over
from specjax.types import RUNNING, Context
from specjax.verify import Coupled

SMALL = Lookahead(ngram=3, window=2, num_candidates=2, pool=16)
BY_HAND = Lookahead(ngram=3, window=3, num_candidates=2, pool=8)
PROMPTS = [[1], [3, 4, 5, 6], [7, 2, 9, 1, 4, 5, 6, 10, 0]]
NUM = 24


def in_pool(pool, row=0):
    ngrams = np.asarray(pool.ngrams[row])
    return ngrams[ngrams[:, 0] >= 0].tolist()


@pytest.mark.parametrize("num_new", [3, 8])
def test_the_pool_keeps_the_newest_ngrams_each_once(num_new):
    generator, size, rows = np.random.default_rng(0), 5, 4
    pool, expected = Pool.empty(rows, size, 2), [[] for _ in range(rows)]
    for _ in range(20):
        new = generator.integers(0, 3, (rows, num_new, 2)).astype(np.int32)
        keep = generator.random((rows, num_new)) < 0.7
        pool = add(pool, jnp.asarray(new), jnp.asarray(keep))
        for row, known in enumerate(expected):
            for ngram in new[row, keep[row]].tolist():
                known[:] = [*(old for old in known if old != ngram), ngram]
            del known[:-size]
            assert in_pool(pool, row) == known


def test_the_newest_ngrams_that_begin_right_are_found_first():
    ngrams = [[[2, 1], [3, 1], [2, 2], [2, 3], [4, 4]]]
    pool = add(Pool.empty(1, 6, 2), jnp.asarray(ngrams), jnp.ones((1, 5), bool))
    found, there = pool.latest(jnp.asarray([2]), 2)
    assert (found.tolist(), there.tolist()) == ([[[2, 3], [2, 2]]], [[True, True]])
    found, there = pool.latest(jnp.asarray([4]), 2)
    assert (found[0, 0].tolist(), there.tolist()) == ([4, 4], [[True, False]])
    assert not pool.latest(jnp.asarray([0]), 2)[1].any()


def test_candidates_that_begin_alike_share_nodes():
    ngrams = jnp.asarray([[[9, 1, 2, 3], [9, 1, 2, 4], [9, 5, 2, 3], [9, 1, 6, 3]]])
    parent, own = shared_prefixes(ngrams)
    assert parent[0].tolist() == [[0, 1, 2], [0, 1, 2], [0, 7, 8], [0, 1, 11]]
    assert own[0].tolist() == [[1, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1]]
    paths = tree.paths(parent.reshape(1, -1), 3)
    tokens = tree.path_tokens(ngrams[:, :, 1:].reshape(1, -1), paths)
    assert tokens[0, jnp.asarray([3, 6, 9, 12])].tolist() == ngrams[0, :, 1:].tolist()


def propose(drafter, state, *texts, active=True, cap=9):
    """What is drafted after some texts; beyond each text the array holds 99."""
    tokens = np.full((len(texts), 12), 99, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    context = Context(jnp.asarray(tokens), jnp.asarray([len(t) for t in texts], jnp.int32))
    limits = (np.resize(active, len(texts)), np.resize(cap, len(texts)).astype(np.int32))
    return _propose(drafter, state, context, *limits)


@jax.jit
def _propose(drafter, state, context, active, cap):
    draw = SimpleNamespace(active=active, cap=cap)
    return drafter.propose(None, (), state, context, draw, width=drafter.depth)[:2]


@jax.jit
def feedback(drafter, state, draft, top):
    return drafter.feedback(state, draft, top)


@jax.jit
def observe(drafter, state, tokens, start, count):
    return drafter.observe(None, state, tokens, start, count, ())


@jax.jit
def add(pool, new, keep):
    return pool.add(new, keep)


def test_a_round_worked_by_hand():
    draft, state = propose(BY_HAND, BY_HAND.init(None, 1, 12), [5, 6, 7, 8, 9])
    assert draft.tokens[0, 4:].tolist() == [6, 7, 8, 7, 8, 9]  # the last four tokens, along columns
    assert not draft.valid.any()
    assert draft.kind.tolist() == [0]
    top = jnp.asarray([[9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3]])
    state = feedback(BY_HAND, state, draft, top)
    assert in_pool(state.pool) == [[6, 7, 1], [7, 8, 2], [8, 9, 3]]
    assert state.window[0].tolist() == [[7, 8, 9], [1, 2, 3]]

    draft, state = propose(BY_HAND, state, [5, 6, 7, 8, 9, 7])
    assert draft.tokens[0, :2].tolist() == [8, 2]
    assert draft.parent[0].tolist() == [0, 1, 0, 3, 0, 5, 6, 5, 6, 7]
    assert draft.tokens[0, 4:].tolist() == [7, 8, 9, 1, 2, 3]
    assert draft.valid[0].tolist() == [True, True, *[False] * 8]
    assert draft.kind.tolist() == [1]
    state = feedback(BY_HAND, state, draft, top)
    assert state.window[0].tolist() == [[1, 2, 3], [1, 2, 3]]
    assert in_pool(state.pool)[3:] == [[7, 1, 1], [8, 2, 2], [9, 3, 3]]


def test_the_window_is_as_deep_as_the_drafter_says():
    for drafter in (SMALL, BY_HAND, Lookahead(), Lookahead(ngram=2, window=1, num_candidates=1)):
        draft, _ = propose(drafter, drafter.init(None, 1, 12), [1, 2, 3])
        depth = [0]
        for above in draft.parent[0].tolist():
            depth.append(depth[above] + 1)
        assert len(depth) == 1 + drafter.num_nodes
        assert (max(depth), drafter.depth) == (drafter.tree_depth, drafter.ngram - 1)
        assert draft.tokens.max() <= 3  # nothing from beyond the text


def test_the_caps_and_the_finished_rows_are_kept():
    state = BY_HAND.init(None, 4, 12)
    ngram = jnp.broadcast_to(jnp.asarray([1, 2, 3]), (4, 1, 3))
    state = state.replace(pool=state.pool.add(ngram, jnp.ones((4, 1), bool)))
    active, cap = [True, True, True, False], [9, 1, 0, 9]
    draft, _ = propose(BY_HAND, state, *[[1]] * 4, active=active, cap=cap)
    assert draft.valid.sum(1).tolist() == [2, 1, 0, 0]


def test_a_guess_that_is_the_target_s_own_token_is_still_never_accepted():
    draft, _ = propose(BY_HAND, BY_HAND.init(None, 1, 12), [0, 1, 2, 3, 0, 1, 2, 3])
    coins = (jnp.pad(draft.tokens, ((0, 0), (1, 0)), constant_values=3) + 1) % 4
    assert draft.tokens[0, 4] == coins[0, 0]
    verdict = jax.jit(Coupled().accept)(draft, jnp.zeros((1, 11, 4)), coins)
    assert verdict.num_accepted.tolist() == [0]


def test_ngrams_of_the_text_are_collected_across_passes_if_wanted():
    drafter = Lookahead(ngram=3, window=2, num_candidates=1, pool=6, from_text=True)
    text = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 7, 8, 9]], np.int32)
    state = drafter.init(None, 2, 12)
    for first, last, count in ((0, 4, [4, 1]), (4, 6, [2, 0])):
        start, count = np.full(2, first, np.int32), np.array(count, np.int32)
        state = observe(drafter, state, text[:, first:last], start, count)
    assert in_pool(state.pool) == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert in_pool(state.pool, 1) == []
    assert state.tail.tolist() == [[5, 6], [-1, 7]]
    before = SMALL.init(None, 2, 12)
    zeros = jnp.zeros(2, jnp.int32)
    assert SMALL.observe(None, before, jnp.asarray(text), zeros, zeros + 6, ()) is before


def test_a_target_that_counts_is_soon_drafted_in_full():
    values, prompts = sampling_values(2, 0.0), [[3], [2, 3, 4, 5, 6, 0]]
    state = decode(Program(counting_lm(7), SMALL, Coupled()), prompts, 60, values=values)
    for tokens, prompt in zip(np.asarray(state.context.tokens), prompts, strict=True):
        expected = (prompt[-1] + np.arange(61)) % 7
        assert tokens[len(prompt) - 1 : len(prompt) + 60].tolist() == expected.tolist()
    mean_acceptance_length = 60 / np.asarray(state.stats.rounds)
    assert (mean_acceptance_length > 2).all()
    assert (mean_acceptance_length <= 3).all()


TINY = tiny_lm(jax.random.key(0))
first = jax.jit(lambda program, state: loop.prefill(program, state, chunk=4))
one_round = jax.jit(loop.round)


def rounds(temperature):
    """Every round of a real decoder, with the drafter's state after it, and the last state."""
    program, batch = Program(TINY, SMALL, Coupled()), len(PROMPTS)
    longest = max(map(len, PROMPTS))
    length = jnp.asarray([len(p) for p in PROMPTS], jnp.int32)
    tokens = jnp.asarray(aligned(PROMPTS, longest + NUM))
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=sampling_values(batch, temperature),
        key=rng.row_keys(jnp.arange(batch, dtype=jnp.uint32)),
        limit=length + NUM,
    )
    state, seen = first(program, state), []
    while (np.asarray(state.finish) == RUNNING).any():
        before = state
        state, done = one_round(program, state)
        seen.append((before, done, state.drafter))
    return seen, state


@pytest.fixture(scope="module")
def greedy_rounds():
    with jax.default_matmul_precision("highest"):
        return rounds(0.0)


def test_a_real_decoder_emits_the_tokens_of_plain_decoding(greedy_rounds):
    program = Program(TINY, Plain(SMALL.num_nodes), Coupled())
    with jax.default_matmul_precision("highest"):
        for temperature, (_, state) in ((0.0, greedy_rounds), (1.0, rounds(1.0))):
            values = sampling_values(len(PROMPTS), temperature)
            plain = decode(program, PROMPTS, NUM, values=values)
            np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
    assert (greedy_rounds[1].stats.rounds < NUM).any()


def test_no_window_node_is_ever_valid_or_accepted(greedy_rounds):
    candidates = SMALL.num_candidates * SMALL.depth
    accepted = 0
    for _, done, _ in greedy_rounds[0]:
        assert not done.draft.valid[:, candidates:].any()
        num = np.asarray(done.verdict.num_accepted)
        nodes = np.asarray(done.verdict.path)[np.arange(SMALL.num_nodes) < num[:, None]]
        assert (nodes <= candidates).all()
        accepted += len(nodes)
    assert accepted > 0


def test_each_new_guess_is_the_target_s_own_after_its_column(greedy_rounds):
    """So the window's mask and positions are those of a text that ends with the column."""
    for before, done, after in greedy_rounds[0][:3]:
        for row, prompt in enumerate(before.context.length.tolist()):
            text = before.context.tokens[row, :prompt].tolist()
            window = done.draft.tokens[row, -SMALL.window * SMALL.depth :]
            window = window.reshape(SMALL.depth, SMALL.window).tolist()
            for column in range(SMALL.window):
                chain = [*window[0][: column + 1], *(r[column] for r in window[1:])]
                expected = argmax_after([*text, *chain])
                assert after.window[row, -1, column] == expected


def argmax_after(text):
    tokens = jnp.asarray(aligned([text], 32))
    logits, _ = pass_over(
        TINY, tokens, jnp.zeros(1, jnp.int32), TINY.init_cache(1, 32), jnp.asarray([len(text)])
    )
    return logits[0, len(text) - 1].argmax()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ngram", {"ngram": 1}),
        ("ngram", {"ngram": 2.5}),
        ("window", {"window": 0}),
        ("num_candidates", {"num_candidates": 0}),
        ("pool", {"pool": 2}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name, values):
    with pytest.raises(ValueError, match=f"^{name}: "):
        Lookahead(**values)
