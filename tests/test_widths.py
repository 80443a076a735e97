"""Passes of several widths, drafts that end early, and lengths that adapt: all change no law."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hand_drafters import Branching, Scripted, counting_lm
from jaxtyping import Array, Int

from specjax import Decoder, draw, loop
from specjax.adaptive import Adaptive
from specjax.drafters import DraftModel, NGram
from specjax.loop import Program
from specjax.stopping import Confidence, Entropy
from specjax.testing import TableLM, tiny_lm
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, decode, sampling_values, sequence_counts
from specjax.testing.table_lm import TokenCache
from specjax.verify import Block, Coupled, Token

V, K, NUM, ROWS, SIZE = 4, 3, 4, 100_000, 1e-6
PROMPT = [1, 2, 1]
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
COSTS = jnp.asarray([1.0, 1.2, 1.3, 1.4])
WIDTHS = (0, 1, 3)


@struct.dataclass
class Counter(TokenCache):
    """A cache that counts the positions fed and the passes."""

    fed: Int[Array, " B"]
    passes: Int[Array, " B"]


@struct.dataclass
class Counting(TableLM):
    """A target that counts in its cache what it is fed."""

    def init_cache(self, batch, capacity, *, scratch=None):
        cache = super().init_cache(batch, capacity)
        none = jnp.zeros(batch, jnp.int32)
        return Counter(cache.tokens, cache.positions, none, none + 0)

    def extend(self, inputs, start, cache, **options):
        hidden, new, features = super().extend(inputs, start, cache, **options)
        counted = Counter(new.tokens, new.positions, cache.fed + inputs.shape[1], cache.passes + 1)
        return hidden, counted, features


def fed_by_round(script, widths, rounds):
    """Positions that each round's pass feeds."""
    target = Counting(counting_lm(8).table)
    program = Program(target, Scripted(jnp.asarray([script], jnp.int32), 4), Coupled())
    program = dataclasses.replace(program, widths=widths)
    tokens = jnp.zeros((1, 20), jnp.int32)
    one, values = jnp.ones(1, jnp.int32), sampling_values(1, 0.0)
    state = loop.start(
        program, tokens, one, sampling_values=values, key=jax.random.key(0)[None], limit=one + 18
    )
    advance, fed = jax.jit(loop.advance), []
    for _ in range(rounds):
        before = int(state.cache.fed[0])
        state = advance(program, state, 1)
        fed.append(int(state.cache.fed[0]) - before)
    assert int(state.cache.passes[0]) == rounds
    return fed


def test_a_pass_is_as_wide_as_its_drafts_need():
    # Right drafts of 1, 0, 2 and 4 tokens: the text counts 0 1 2 3 ...
    script = [-1, 1, -1, -1, 4, 5, -1, 7, 0, 1, 2] + [-1] * 9
    assert fed_by_round(script, (0, 2), 5) == [3, 1, 3, 5, 1]
    assert fed_by_round(script, None, 5) == [5, 5, 5, 5, 5]
    assert fed_by_round(script, (0, 1, 2, 4, 9), 5) == [2, 1, 3, 5, 1]


def test_a_drafter_that_listens_is_always_fed_whole():
    program = Program(TARGET, Branching(DRAFT.table), Token(), widths=(0, 1))
    assert program.passes == (4,)


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_widths_change_no_token(temperature):
    target = tiny_lm(jax.random.key(0))
    drafter = DraftModel(tiny_lm(jax.random.key(0), max_length=40), 4)  # silent near the end
    prompts = [[5, 6, 7, 5, 6], [9, 8, 3], [1]]
    settings = {"max_new_tokens": 45, "temperature": temperature, "seed": 3}
    one, several = (Decoder(target, drafter, verifier="coupled", widths=w) for w in (None, (0, 2)))
    with jax.default_matmul_precision("highest"):
        assert (
            several.generate(prompts, **settings).tokens == one.generate(prompts, **settings).tokens
        )


def p_value(program, rows=ROWS):
    values = sampling_values(1)
    law = sequence_law(program.target, PROMPT, NUM, values)
    counts = sequence_counts(program, PROMPT, NUM, rows, values=sampling_values(rows))
    return chi_square_p(counts, law)


RULES = [Confidence(0.5), Entropy(0.4, 0.5)]


@pytest.mark.parametrize(
    ("rule", "verifier"),
    [
        (RULES[0], Block()),
        pytest.param(RULES[0], Token(), marks=pytest.mark.slow),
        pytest.param(RULES[1], Block(), marks=pytest.mark.slow),
        pytest.param(RULES[1], Token(), marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_stopping_rule_keeps_the_law(rule, verifier):
    program = Program(TARGET, DraftModel(DRAFT, K), verifier, stopping=rule, widths=WIDTHS)
    state = decode(program, [PROMPT] * 64, 12)
    lengths = np.asarray(state.stats.outcomes).sum((0, 2))
    assert (lengths > 0).sum() >= 3  # drafts of several lengths, empty ones among them
    assert p_value(program) > SIZE


@pytest.mark.slow
def test_finds_a_rule_that_has_seen_the_token(monkeypatch):
    """To drop a token because it is unlikely is what the type of a rule does not allow."""
    call = draw.RowDraw.__call__

    def drop_unlikely(self, logits, node, num=1):
        drawn = call(self, logits, node, num)
        alive = drawn.children.alive & (drawn.score > jnp.log(0.25))
        return drawn.replace(children=drawn.children.replace(alive=alive))

    jax.clear_caches()
    monkeypatch.setattr(draw.RowDraw, "__call__", drop_unlikely)
    assert p_value(Program(TARGET, DraftModel(DRAFT, K), Token())) < SIZE
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_a_policy_keeps_the_law(verifier):
    policy = Adaptive(COSTS, draft_cost=0.3, exploration=0.5)
    drafter = DraftModel(DRAFT, K)
    program = Program(TARGET, drafter, verifier, policy=policy, widths=WIDTHS)
    state = decode(program, [PROMPT] * 64, 12)
    lengths = np.asarray(state.stats.outcomes).sum((0, 2))
    assert (lengths > 0).sum() >= 3
    assert p_value(program) > SIZE


@pytest.mark.slow
def test_rows_adapt_alone():
    program = Program(
        TARGET,
        DraftModel(DRAFT, K),
        Token(),
        policy=Adaptive(COSTS, draft_cost=0.3, exploration=0.5),
    )
    prompts = [[1, 2], [3, 0, 1], [2]]
    together = decode(program, prompts, 30, seeds=[4, 5, 6])
    alone = decode(program, prompts[1:2], 30, seeds=[5])
    assert program.rows_independent
    np.testing.assert_array_equal(together.context.tokens[1, 3:33], alone.context.tokens[0, 3:33])
    np.testing.assert_array_equal(together.stats.outcomes[1], alone.stats.outcomes[0])


def test_a_policy_learns_to_leave_what_never_passes():
    never = Scripted(jnp.full((1, 80), 7, jnp.int32), 3)  # a text that counts to 6 has no 7
    target = TableLM(jnp.pad(counting_lm(7).table, ((0, 1),) * 3, constant_values=-50.0))
    policy = Adaptive(COSTS)
    program = Program(target, never, Coupled(), policy=policy, widths=(0,))
    state = decode(program, [[1]], 60, values=sampling_values(1, 0.0))
    drafted = int(np.asarray(state.stats.outcomes)[0, 1:].sum())
    assert int(state.stats.rounds[0]) == 60
    assert 1 < drafted < 20  # and cheap ones: every draft of length 1 costs a fifth of a round


def test_kinds_of_an_n_gram_are_told_apart():
    """After a long match drafts pass, after a short one they do not: only the long is kept."""
    decoder = Decoder(TARGET, NGram(3), policy=Adaptive(COSTS))
    state = decode(decoder.program, [[1, 2, 1, 2]], 30)
    assert state.policy.plain.shape == (1, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": [0, -1]}, "widths: must be ints from 0 up"),
        ({"widths": 1.5}, "widths: must be ints from 0 up"),
        ({"policy": 4}, "policy: must be a Policy such as specjax.Adaptive"),
        ({"policy": Adaptive(COSTS[:2])}, "pass_costs: must be of shape"),
        ({"stopping": 0.5}, "stopping: must be a StoppingRule"),
        ({"stopping": Confidence(0.5), "drafter": NGram(3)}, "stopping: is asked before a token"),
    ],
)
def test_what_cannot_adapt_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Decoder(TARGET, **{"drafter": DraftModel(DRAFT, K), **options})


def test_a_rule_and_its_threshold_are_leaves():
    assert len(jax.tree.leaves(Confidence(0.5))) == 1
