"""Bias, penalties and bans: as transformers has them, and the same with and without speculation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters import DraftModel, NGram, Plain
from specjax.loop import Program
from specjax.processors import chain
from specjax.settings import sampling_of
from specjax.testing import TableLM
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, decode, sequence_counts
from specjax.verify import Block, Coupled, Token

V, ROWS, NUM = 12, 8, 20
STOP_IDS = jnp.broadcast_to(jnp.asarray([5, -1], jnp.int32), (ROWS, 2))


def values_of(batch=ROWS, vocab_size=V, **settings):
    """Every processor in the program, neutral where ``settings`` say nothing."""
    neutral = {
        "logit_bias": {},
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "no_repeat_ngram_size": 0,
        "min_new_tokens": 0,
    }
    return sampling_of(batch, vocab_size, STOP_IDS[:batch], {**neutral, **settings})


EVERY = chain(values_of())


def test_the_order_is_that_of_transformers():
    names = [type(p).__name__ for p in EVERY]
    assert names == [
        *("Bias", "Penalties", "NoRepeatNGram", "MinNewTokens"),
        *("Temperature", "TopK", "TopP", "MinP"),
    ]


def test_what_no_call_uses_is_not_in_the_program():
    assert chain(sampling_of(2, V, STOP_IDS[:2], {})) == sampling.FILTERS


def test_all_processors_agree_with_transformers():
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    generator = np.random.default_rng(0)
    length, new, size, rows = 14, 3, 30, 40
    texts = generator.integers(0, 9, (rows, length))  # few tokens, so that n-grams repeat
    logits = (generator.normal(size=(rows, size)) * 4).astype(np.float32)
    biases = [
        {int(t): float(b) for t, b in zip(*pair, strict=True)}
        for pair in _pairs(generator, rows, size)
    ]
    penalty = generator.choice([0.3, 1.0, 1.7, 1e9], rows)
    ngram = generator.choice([0, 1, 2, 3, 20], rows)
    least = generator.choice([0, 3, 4], rows)
    banned = [generator.choice(size, 3, replace=False).tolist() for _ in range(rows)]
    values = sampling_of(
        rows,
        size,
        jnp.broadcast_to(jnp.asarray([5, 7], jnp.int32), (rows, 2)),
        {
            "logit_bias": biases,
            "banned_tokens": banned,
            "repetition_penalty": penalty.tolist(),
            "no_repeat_ngram_size": ngram.tolist(),
            "min_new_tokens": least.tolist(),
            "temperature": 0.7,
        },
    )
    ours = _at_the_end_of(texts, new, logits, values)
    for row in range(rows):
        ids, x = torch.tensor(texts[row : row + 1]), torch.tensor(logits[row : row + 1])
        bias = {(t,): b for t, b in biases[row].items()}
        x = theirs.SequenceBiasLogitsProcessor(bias)(ids, x) if bias else x
        x = theirs.RepetitionPenaltyLogitsProcessor(float(penalty[row]))(ids, x)
        if ngram[row]:
            x = theirs.NoRepeatNGramLogitsProcessor(int(ngram[row]))(ids, x)
        x = theirs.NoBadWordsLogitsProcessor([[t] for t in banned[row]])(ids, x)
        if least[row]:
            early = theirs.MinNewTokensLengthLogitsProcessor(length - new, int(least[row]), [5, 7])
            x = early(ids, x)
        x = theirs.TemperatureLogitsWarper(0.7)(ids, x)
        np.testing.assert_allclose(ours[row], x[0].numpy(), rtol=2e-6, err_msg=f"row {row}")


def _pairs(generator, rows, size):
    for _ in range(rows):
        yield generator.choice(size, 4, replace=False), generator.choice([-1e9, -2.0, 3.0], 4)


def _at_the_end_of(texts, new, logits, values):
    """Processed logits after the whole text, whose last ``new`` tokens are a draft."""
    tokens = jnp.pad(jnp.asarray(texts, jnp.int32), ((0, 0), (0, 4)))
    rows, length = texts.shape
    processors = chain(values)
    first = jnp.full(rows, length - new, jnp.int32)
    states = sampling.start_processors(processors, tokens, first, values)
    path = jnp.asarray(texts[:, None, length - new :], jnp.int32)
    depth = jnp.full((rows, 1), new, jnp.int32)
    processed = sampling.process(
        processors, states, values, jnp.asarray(logits)[:, None], path, depth
    )
    return np.asarray(processed)[:, 0]


def test_presence_and_frequency_count_prompt_output_and_draft():
    values = values_of(1, 6, presence_penalty=0.5, frequency_penalty=0.25)
    out = _at_the_end_of(np.array([[1, 2, 2, 4, 2]]), 2, np.zeros((1, 6), np.float32), values)
    np.testing.assert_allclose(-out, [[0, 0.75, 1.25, 0, 0.75, 0]])


def test_a_token_that_is_not_allowed_never_comes_whatever_its_bias():
    values = values_of(
        1, 6, allowed_tokens=[1, 2], banned_tokens=[2], logit_bias={3: 1e9, 1: -1e9, 2: 1e9}
    )
    out = _at_the_end_of(np.array([[1, 2]]), 1, np.zeros((1, 6), np.float32), values)
    assert np.isfinite(out).tolist() == [[False, True, False, False, False, False]]


# With and without speculation.

TARGET = TableLM.random(jax.random.key(0), V, scale=2.0)
DRAFT = TableLM(TARGET.table + 2.0 * TableLM.random(jax.random.key(1), V).table)
PROMPTS = [[1, 2, 1], [3], [4, 4, 4, 2], [5, 1], [0, 1, 2, 3, 4], [7, 7], [9, 8, 9], [2]]
EIGHT = {
    "logit_bias": [{}, {3: 1e9}, {3: -1e9}, {1: 1e9, 2: 1e9}, {0: 2.0}, {7: -np.inf}, {4: 1e9}, {}],
    "repetition_penalty": [1.0, 1e9, 1e-9, 1.3, 0.5, 2.0, 1e9, 1.0],
    "presence_penalty": [0.0, 1e9, -1e9, 0.5, -0.5, 2.0, 1e30, 1.0],
    "frequency_penalty": [0.0, 1e9, -1e9, 0.5, -0.5, 2.0, 1e30, 1.0],
    "no_repeat_ngram_size": [0, 1, 2, 3, 1, 2, 3, 30],
    "min_new_tokens": [0, 20, 3, 4, 1, 19, 30, 0],
    "banned_tokens": [[], [1], [2, 3], list(range(11)), [0], [5], [4, 6], [9]],
    "allowed_tokens": [None, [1, 2], [3, 5], [7], [0, 1, 2], None, [6, 8, 9], [5]],
    "top_k": [0, 1, 2, 3, 1, 0, 5, 2],
    "top_p": [1.0, 0.9, 0.5, 0.01, 0.7, 1.0, 0.99, 0.3],
    "min_p": [0.0, 0.1, 1.0, 0.5, 0.2, 0.0, 0.9, 0.01],
    "temperature": [1.0, 0.1, 5.0, 1e-6, 1e9, 0.7, 1.3, 2.0],
}
TOGETHER = {
    "logit_bias": EIGHT["logit_bias"],
    "repetition_penalty": [1.2, 1.0, 0.8, 1e9, 1.1, 1.0, 3.0, 1.0],
    "frequency_penalty": [0.3, -0.2, 0.0, 0.0, 1.0, 0.1, 0.0, 0.5],
    "no_repeat_ngram_size": [0, 2, 3, 0, 4, 0, 2, 3],
    "min_new_tokens": [10, 0, 5, 0, 20, 0, 3, 1],
    "top_k": [0, 3, 0, 5, 0, 4, 0, 6],
    "temperature": [0.8, 1.0, 0.0, 1.0, 1.0, 0.0, 1.2, 1.0],
}
CASES = {name: {name: value} for name, value in EIGHT.items()} | {"together": TOGETHER}


@pytest.fixture(scope="module")
def plain():
    """Plain decoding with the settings of each case, by temperature; TableLM never rounds."""
    program = Program(TARGET, Plain(), Coupled(), EVERY)
    cases = {(name, heat): _texts(program, name, heat) for name in CASES for heat in (0.0, 1.0)}
    changed = [name for name in CASES if cases[name, 0.0] != cases["top_k", 0.0]]
    assert len(changed) >= 7  # these settings do something; top-k and its like leave the argmax
    return cases


def _decode(program, name, heat):
    # A temperature of its own, such as that of a case, goes before.
    settings = {"temperature": heat, **CASES[name]} if heat else {**CASES[name], "temperature": 0.0}
    return decode(program, PROMPTS, NUM, values=values_of(**settings))


def _texts(program, name, heat):
    state = _decode(program, name, heat)
    tokens, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
    return [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]


@pytest.mark.parametrize(
    "k", [1, 7, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3, 4, 5, 6))]
)
def test_speculative_equals_plain_for_each_processor(plain, k):
    program = Program(TARGET, DraftModel(DRAFT, k), Coupled(), EVERY)
    for name, heat in plain:
        assert _texts(program, name, heat) == plain[name, heat], f"{name} at temperature {heat}"
    stats = _decode(program, "together", 1.0).stats
    kept = int((np.asarray(stats.outcomes).sum((0, 1)) * np.arange(k + 1)).sum())
    assert 0 < kept < int(stats.nodes.sum())  # drafts were accepted, and rejected


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_greedy_under_ratio_rules_equals_plain_for_each_processor(plain, verifier):
    program = Program(TARGET, DraftModel(DRAFT, 3), verifier, EVERY)
    for name in CASES:
        assert _texts(program, name, 0.0) == plain[name, 0.0], name


def test_point_masses_equal_plain_for_each_processor(plain):
    program = Program(TARGET, NGram(4), Coupled(), EVERY)
    for name, heat in plain:
        assert _texts(program, name, heat) == plain[name, heat], f"{name} at temperature {heat}"


def test_a_row_with_neutral_values_is_left_alone(plain):
    bare = decode(
        Program(TARGET, Plain(), Coupled()), PROMPTS, NUM, values=values_of(temperature=1.0)
    )
    tokens = np.asarray(bare.context.tokens)[0, : int(bare.context.length[0])].tolist()
    for name in (
        "repetition_penalty",
        "frequency_penalty",
        "no_repeat_ngram_size",
        "min_new_tokens",
    ):
        assert plain[name, 1.0][0] == tokens, name


# The law, where q and p share a history.

SMALL = TableLM.random(jax.random.key(2), 4)
SMALL_DRAFT = TableLM.random(jax.random.key(3), 4)
PENALISED = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.7,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
}


def small(batch):
    return dataclasses.replace(
        sampling_of(batch, 4, jnp.full((batch, 1), -1, jnp.int32), PENALISED)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "own"),
    [
        (Token(), False),
        pytest.param(Block(), True, marks=pytest.mark.slow),
        pytest.param(Token(), True, marks=pytest.mark.slow),
        pytest.param(Block(), False, marks=pytest.mark.slow),
    ],
    ids=["token", "block, draft's own chain", "token, draft's own chain", "block"],
)
def test_the_law_with_filters_and_penalties_is_kept(verifier, own):
    rows, prompt, num = 50_000, [1, 2, 1], 4
    processors = chain(small(1))
    draft_processors = sampling.FILTERS[:1] if own else None
    program = Program(SMALL, DraftModel(SMALL_DRAFT, 3), verifier, processors, draft_processors)
    law = sequence_law(SMALL, prompt, num, small(1), processors)
    assert (law == 0).any()  # the filters do cut
    counts = sequence_counts(program, prompt, num, rows, values=small(rows))
    assert chi_square_p(counts, law) > 1e-6
