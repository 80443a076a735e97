"""L1: the law of whole sequences, through the jitted loop, over several rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import planted_faults as faults
import pytest
from flax import struct

from specjax import draw, loop, rng, sampling
from specjax.drafters import DraftModel, NGram
from specjax.loop import Program
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, sampling_values, sequence_counts
from specjax.testing.table_lm import TableLM
from specjax.verify import Block, Coupled, Token

V, K, NUM, ROWS = 4, 3, 4, 200_000
SIZE = 1e-6
PROMPT = [1, 2, 1]
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
VERIFIERS = [Token(), Block(), Coupled()]


def names(value):
    return value if isinstance(value, str) else type(value).__name__


def p_value(program, rows=ROWS, num=NUM, processors=sampling.FILTERS, **values):
    row = sampling_values(1, **values)
    law = sequence_law(program.target, PROMPT, num, row, processors)
    every = sampling_values(rows, **values)
    return chi_square_p(sequence_counts(program, PROMPT, num, rows, values=every), law)


SETTINGS = {
    "plain": {},
    "top-k": {"temperature": 0.6, "top_k": 3},
    "top-p": {"top_p": 0.7, "min_p": 0.1},
}
QUICK = [("plain", Token()), ("plain", Coupled()), ("top-k", Token()), ("top-p", Block())]


@pytest.mark.parametrize(
    ("values", "verifier"),
    [
        pytest.param(name, rule, marks=() if (name, rule) in QUICK else pytest.mark.slow)
        for name in SETTINGS
        for rule in VERIFIERS
    ],
    ids=names,
)
def test_a_draft_model_keeps_the_law(values, verifier):
    program = Program(TARGET, DraftModel(DRAFT, K), verifier)
    assert p_value(program, **SETTINGS[values]) > SIZE


@pytest.mark.parametrize("verifier", VERIFIERS, ids=names)
def test_point_masses_keep_the_law(verifier):
    assert p_value(Program(TARGET, NGram(K), verifier)) > SIZE


@pytest.mark.parametrize("verifier", VERIFIERS, ids=names)
def test_the_target_as_its_own_drafter_keeps_the_law(verifier):
    assert p_value(Program(TARGET, DraftModel(TARGET, K), verifier)) > SIZE


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=names)
def test_a_nearly_disjoint_draft_keeps_the_law(verifier):
    draft = TableLM(-3 * TARGET.table)
    assert p_value(Program(TARGET, DraftModel(draft, K), verifier)) > SIZE


@struct.dataclass
class Repetition:
    """Lowers the logits of every token seen so far: a processor with a history."""

    amount: float = struct.field(pytree_node=False, default=1.5)

    def init(self, tokens, length, row):
        seen = jax.nn.one_hot(tokens, V, dtype=bool)
        return (seen & (jnp.arange(tokens.shape[0]) < length)[:, None]).any(0)

    def advance(self, h, token):
        return h.at[token].set(True)

    def apply(self, logits, h, row):
        return logits - jnp.where(h, self.amount, 0.0)


WITH_HISTORY = (Repetition(), *sampling.FILTERS)


@pytest.mark.parametrize(
    "verifier",
    [Token(), *(pytest.param(v, marks=pytest.mark.slow) for v in VERIFIERS[1:])],
    ids=names,
)
def test_a_processor_with_history_follows_each_path(verifier):
    program = Program(TARGET, DraftModel(DRAFT, K), verifier, WITH_HISTORY)
    assert p_value(program, processors=WITH_HISTORY) > SIZE


# Faults that only a whole run shows.


@pytest.fixture
def patched(monkeypatch):
    """Patch code that traces may have baked in, and forget those traces before and after."""
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()


def test_finds_a_drafter_that_drops_its_own_unlikely_token():
    program = Program(TARGET, faults.DropsUnlikelyTokens(DRAFT, K), Token())
    assert p_value(program) < SIZE


@pytest.mark.slow
def test_finds_a_law_recorded_before_top_k():
    program = Program(TARGET, faults.RecordsUnfilteredLaw(DRAFT, K), Token())
    assert p_value(program, top_k=2) < SIZE


@pytest.mark.slow
def test_finds_a_processor_on_one_side_only():
    program = Program(TARGET, DraftModel(DRAFT, K), Token(), sampling.FILTERS)
    assert p_value(program, processors=WITH_HISTORY) < SIZE


@pytest.mark.slow
def test_finds_a_history_without_the_draft_tokens(patched):
    row = sampling_values(1)
    law = sequence_law(TARGET, PROMPT, NUM, row, WITH_HISTORY)
    process = sampling.process
    patched.setattr(sampling, "process", lambda *args: process(*args[:-1], 0 * args[-1]))
    program = Program(TARGET, DraftModel(DRAFT, K), Token(), WITH_HISTORY)
    assert chi_square_p(sequence_counts(program, PROMPT, NUM, ROWS), law) < SIZE


@pytest.mark.slow
def test_finds_one_draft_key_for_all_steps(patched):
    children = draw.RowDraw._children

    def same_key(self, node, tokens, supported):
        child = children(self, node, tokens, supported)
        return child.replace(key=jnp.broadcast_to(node.key[..., None], child.key.shape))

    patched.setattr(draw.RowDraw, "_children", same_key)
    assert p_value(Program(TARGET, DraftModel(DRAFT, K), Token())) < SIZE


@pytest.mark.slow
def test_finds_block_verification_keyed_by_absolute_position(patched):
    """Exact in one round, biased over several: coins beyond the kept prefix are used again."""
    length = []
    propose, stream, uniforms = loop.propose, rng.stream, rng.uniforms

    def propose_after_noting_length(program, state):
        length[:] = [state.context.length[:, None]]
        return propose(program, state)

    def uncounted_stream(key, name, counter):
        return stream(key, name, counter) if name == rng.LAST else rng.fold(key, name)

    def uniforms_by_position(key, num, dtype):
        positions = length[0] + jnp.arange(num, dtype=jnp.int32)
        return uniforms(rng.fold(key, positions).reshape(-1), 1, dtype).reshape(positions.shape)

    def noise_by_position(self, node):
        return rng.gumbel(rng.fold(self.key, length[0] + node.depth), V)

    patched.setattr(loop, "propose", propose_after_noting_length)
    patched.setattr(rng, "stream", uncounted_stream)
    patched.setattr(rng, "uniforms", uniforms_by_position)
    patched.setattr(draw.RowDraw, "_noise_at", noise_by_position)
    assert p_value(Program(TARGET, DraftModel(DRAFT, K), Block()), num=6) < SIZE


def test_finds_a_sequence_of_law_zero():
    law = np.array([0.5, 0.5, 0.0])
    assert chi_square_p(np.array([500, 499, 1]), law) == 0
    assert chi_square_p(np.array([500, 500, 0]), law) > SIZE
