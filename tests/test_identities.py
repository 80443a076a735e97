"""L2: identities that hold without statistics, or with a mean that is known exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from specjax import tree
from specjax.drafters import DraftModel, NGram, Plain
from specjax.drafters.chain import Chain
from specjax.loop import Program
from specjax.metrics import Metrics, expected_acceptance_length
from specjax.sampling import softmax
from specjax.testing import TableLM, tiny_lm
from specjax.testing.statistics import decode, sampling_values
from specjax.types import Draft
from specjax.verify import Block, Coupled, Token

V = 5
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
VERIFIERS = [Token(), Block(), Coupled()]


def names(verifier):
    return type(verifier).__name__


def metrics(state):
    return Metrics.from_stats(state.stats)


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(
    "verifier",
    [VERIFIERS[0], *(pytest.param(rule, marks=pytest.mark.slow) for rule in VERIFIERS[1:])],
    ids=names,
)
def test_the_target_as_its_own_drafter_is_always_accepted(verifier, temperature):
    """200 rounds, from a one-token prompt and from longer ones of other lengths."""
    target = tiny_lm(jax.random.key(2), max_length=2048)
    program = Program(target, DraftModel(target, 3), verifier)
    with jax.default_matmul_precision("highest"):
        values = sampling_values(3, temperature)
        state = decode(program, [[7], [1, 2], [3, 1, 4, 1, 5]], 800, values=values)
    # The pass over one position and the one over four may round a near tie apart.
    assert metrics(state).draft_acceptance_rate > 0.995
    assert (np.asarray(state.stats.rounds) <= 205).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", VERIFIERS, ids=names)
def test_equal_laws_are_accepted_without_exception(verifier, temperature):
    """On a table the two passes round alike, so not one of 600 drafts may fail."""
    program = Program(TARGET, DraftModel(TARGET, 3), verifier)
    state = decode(program, [[1], [2, 3]], 800, values=sampling_values(2, temperature))
    assert metrics(state).draft_acceptance_rate == 1.0
    assert np.asarray(state.stats.rounds).tolist() == [200, 200]


@struct.dataclass
class Uniform(Chain):
    """Drafts uniform tokens from a fixed table of noise, as point masses or with their true law."""

    noise: jax.Array
    draft_length: int = struct.field(pytree_node=False, default=3)
    with_law: bool = struct.field(pytree_node=False, default=False)

    def propose(self, target, cache, state, context, draw, *, width):
        batch = context.tokens.shape[0]
        at = context.length[:, None] + jnp.arange(width, dtype=jnp.int32)
        tokens = jnp.take_along_axis(self.noise, at, axis=1)
        probs = jnp.full((batch, width, V), 1 / V) if self.with_law else None
        valid = jnp.arange(width, dtype=jnp.int32) < draw.cap[:, None]
        return Draft(tokens, tree.chain_parents(batch, width), valid, probs), state, cache


def uniform(rows, with_law):
    noise = jax.random.randint(jax.random.key(3), (rows, 64), 0, V, jnp.int32)
    return Uniform(noise, with_law=with_law)


def test_random_point_masses_are_accepted_once_in_v():
    program = Program(TARGET, uniform(20_000, with_law=False), Token())
    rate = metrics(decode(program, [[1, 2]] * 20_000, 8)).acceptance_rate_at[0]
    assert rate == pytest.approx(1 / V, abs=0.004)


@pytest.mark.slow
def test_first_position_acceptance_is_the_mean_overlap_of_p_and_q():
    """alpha = sum min(p, q) = 1 - TV, at the very context; here the first round's only."""
    rows, prompt = 20_000, [1, 2]
    p = softmax(TARGET.table[1, 2])
    for drafter, q in (
        (uniform(rows, with_law=True), jnp.full(V, 1 / V)),
        (DraftModel(DRAFT, 3), softmax(DRAFT.table[1, 2])),
    ):
        state = decode(Program(TARGET, drafter, Token()), [prompt] * rows, 1)
        # A budget of one token: the only judged draft is the first.
        first = np.asarray(state.drafted)[:, len(prompt)].mean()
        assert first == pytest.approx(float(jnp.minimum(p, q).sum()), abs=0.015)


def test_coupled_acceptance_is_what_the_paper_says():
    """sum_x 1 / sum_v max(p_v / p_x, q_v / q_x) (Daliri, Musco, Suresh 2024, theorem 1)."""
    rows, prompt = 20_000, [1, 2]
    p, q = softmax(TARGET.table[1, 2]), softmax(DRAFT.table[1, 2])
    ratios = jnp.maximum(p[None] / p[:, None], q[None] / q[:, None])
    expected = float((1 / ratios.sum(1)).sum())
    state = decode(Program(TARGET, DraftModel(DRAFT, 3), Coupled()), [prompt] * rows, 1)
    assert np.asarray(state.drafted)[:, 2].mean() == pytest.approx(expected, abs=0.015)
    overlap = float(jnp.minimum(p, q).sum())
    assert overlap / (2 - overlap) <= expected <= overlap


@pytest.mark.slow
def test_block_keeps_more_than_token():
    found = {}
    for verifier in (Token(), Block()):
        program = Program(TARGET, DraftModel(DRAFT, 6), verifier)
        found[names(verifier)] = metrics(decode(program, [[1, 2]] * 1000, 24))
    assert found["Block"].mean_acceptance_length > found["Token"].mean_acceptance_length


def test_acceptance_length_follows_from_the_rates_by_position():
    """E = 1 + sum of products of the measured conditional rates, for uncut rounds."""
    state = decode(Program(TARGET, DraftModel(DRAFT, 3), Token()), [[1, 2]] * 1000, 60)
    measured = metrics(state)
    expected = expected_acceptance_length(measured.acceptance_rate_at)
    assert measured.mean_acceptance_length == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("draft_length", [1, 4, 7])
def test_greedy_and_coupled_give_the_tokens_of_plain_decoding(draft_length):
    """On a real decoder, for every drafter, ragged rows, at temperature 0 and 1."""
    target, draft = tiny_lm(jax.random.key(2)), tiny_lm(jax.random.key(3))
    prompts = [[5, 6, 7, 5, 6], [9], [1, 2, 1, 2, 1]]
    values = sampling_values(3).replace(temperature=jnp.asarray([0.0, 1.0, 0.8], jnp.float32))
    with jax.default_matmul_precision("highest"):
        plain = decode(Program(target, Plain(), Coupled()), prompts, 40, values=values)
        for drafter in (
            NGram(draft_length),
            DraftModel(draft, draft_length),
            DraftModel(target, draft_length),
        ):
            state = decode(Program(target, drafter, Coupled()), prompts, 40, values=values)
            np.testing.assert_array_equal(state.context.tokens, plain.context.tokens)
