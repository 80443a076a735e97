"""Several drafters in one: who speaks, for which rows, and that nothing of the others leaks in."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_drafters import Branching, Scripted

from specjax import Decoder, loop, rng
from specjax.drafters import DraftModel, NGram, Plain, first_of
from specjax.testing import TableLM, tiny_lm
from specjax.testing.statistics import sampling_values
from specjax.types import Draft
from specjax.verify import Coupled

TARGET = TableLM.random(jax.random.key(0), 6)
DRAFT = TableLM.random(jax.random.key(1), 6)


def proposed(drafter, rows, cap):
    """Propose once for rows of four tokens and return draft and state."""
    tokens = jnp.pad(jnp.asarray(rows, jnp.int32), ((0, 0), (0, 8)))
    length = jnp.full(len(rows), 4, jnp.int32)
    program = loop.Program(TARGET, drafter, Coupled())
    state = loop.start(
        program,
        tokens,
        length,
        sampling_values=sampling_values(len(rows)),
        key=rng.row_keys(jnp.arange(len(rows))),
        limit=length + 6,
        cap=jnp.full(len(rows), cap, jnp.int32),
    )
    proposal, state = loop.propose(program, state)
    return proposal.draft, state.drafter


SCRIPT = jnp.asarray([[-1] * 4 + [5, 5] + [-1] * 6, [-1] * 12, [-1] * 12], jnp.int32)
ROWS = [[0, 1, 2, 3], [1, 2, 0, 1], [0, 1, 2, 3]]


def test_each_row_takes_the_first_that_has_something_to_say():
    drafter = first_of(Scripted(SCRIPT, 2), NGram(3), DraftModel(DRAFT, 2))
    draft, state = proposed(drafter, ROWS, cap=3)
    assert state.chosen.tolist() == [0, 1, 2]
    assert draft.tokens[0, :2].tolist() == [5, 5]
    assert draft.tokens[1].tolist() == [2, 0, 1]
    assert draft.valid.sum(1).tolist() == [2, 3, 2]
    assert draft.kind.tolist()[1] == 1 + 1  # after the script's only kind, a match of one token


def test_a_model_does_no_work_for_rows_that_have_a_draft():
    drafter = first_of(NGram(3), DraftModel(DRAFT, 3))
    _, state = proposed(drafter, [[1, 2, 0, 1], [0, 1, 2, 3]], cap=3)
    assert state.inner[1].synced.tolist() == [0, 4]


def test_where_nobody_speaks_the_last_ones_draft_stands():
    draft, state = proposed(first_of(NGram(2), Scripted(SCRIPT[2:], 2)), ROWS[2:], cap=0)
    assert state.chosen.tolist() == [1]
    assert not draft.valid.any()


def test_a_feedback_tells_nothing_about_the_drafts_of_others():
    drafter = first_of(NGram(2), Branching(DRAFT.table))
    state = drafter.init(TARGET, 2, 8)
    state = dataclasses.replace(state, chosen=jnp.asarray([0, 1]))
    fed = jnp.ones((2, 4), jnp.int32)
    told = drafter.feedback(state, Draft(fed, fed, fed.astype(bool)), jnp.full((2, 5), 3))
    assert told.inner[1].top.tolist() == [[0] * 5, [3] * 5]


def test_a_tree_among_chains_makes_a_tree():
    drafter = first_of(NGram(5), Branching(DRAFT.table))
    assert (drafter.depth, drafter.num_nodes, drafter.tree_depth) == (5, 6, 5)
    assert drafter.wants == (0, 1, 2)
    assert first_of(NGram(5), NGram(3)).num_nodes == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "drafters: give at least one"),
        ((NGram,), "drafters: must be Drafters"),
        ((NGram(2), Plain()), "drafters: Plain drafts no token; leave it out"),
    ],
)
def test_what_cannot_be_asked_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Decoder(TARGET, first_of(*given))


def test_rows_of_a_decoder_choose_for_themselves():
    target = tiny_lm(jax.random.key(0))
    prompts = [[5, 6, 7, 5, 6], [9, 8, 3]]
    drafter = first_of(NGram(3, min_ngram=2), DraftModel(tiny_lm(jax.random.key(1)), 2))
    plain = Decoder(target).generate(prompts, max_new_tokens=20, temperature=0.7, seed=1)
    mixed = Decoder(target, drafter, verifier="coupled").generate(
        prompts, max_new_tokens=20, temperature=0.7, seed=1
    )
    assert mixed.tokens == plain.tokens
    assert np.sum(mixed.metrics.num_accepted_tokens) > 0
