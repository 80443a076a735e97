"""Faults that users of other systems reported, in twelve kinds, each by a test named after it.

Law, greedy, stop, batch, options, vocabulary, cache, weights, progress, streaming, compiling,
metrics. Each is shown here in short; the files of their own go further.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from flax import struct
from hand_drafters import Scripted, counting_lm
from recorded_tensors import tensors_of
from test_weights import CONFIG

from specjax import Decoder, compiled, loop, rng, tree
from specjax.drafters import DraftModel, Plain
from specjax.loop import Program
from specjax.models import assemble, llama
from specjax.testing import TableLM
from specjax.testing.statistics import decode, sampling_values
from specjax.types import Draft, Sampling
from specjax.verify import Block, Coupled, Token

V, K = 6, 3
TARGET = TableLM.random(jax.random.key(0), V)
OTHER = TableLM.random(jax.random.key(1), V)
RATIO_RULES = [Token(), Block()]
EVERY = [*RATIO_RULES, Coupled()]


def names(verifier):
    return type(verifier).__name__


def chain(tokens, probs=None, valid=True):
    """A draft of one row."""
    tokens = jnp.asarray([tokens], jnp.int32)
    valid = jnp.broadcast_to(jnp.asarray(valid), tokens.shape)
    probs = None if probs is None else jnp.asarray([probs])
    return Draft(tokens, tree.chain_parents(*tokens.shape), valid, probs)


# 1. Law.


@partial(jax.jit, static_argnames="batch")
def first_round(program, values, batch):
    """What the first round did, after a prompt of the one token 2."""
    state = loop.start(
        program,
        jnp.full((batch, 10), 2, jnp.int32),
        jnp.ones(batch, jnp.int32),
        sampling_values=values,
        key=rng.row_keys(jnp.arange(batch, dtype=jnp.uint32)),
        limit=jnp.full(batch, 10, jnp.int32),
    )
    return loop.round(program, state)[1]


def processed(logits, temperature, top_k):
    """Law after temperature and top-k, in numpy."""
    logits = np.asarray(logits, np.float64) / temperature
    kept = np.where(logits >= np.sort(logits)[-top_k], logits, -np.inf)
    weight = np.exp(kept - kept.max())
    return weight / weight.sum()


@pytest.fixture(scope="module")
def watched():
    values = sampling_values(64, temperature=0.7, top_k=4)
    return first_round(Program(TARGET, DraftModel(OTHER, K), Token()), values, 64)


def test_law_of_both_sides_is_processed_alike_and_judged_node_by_node(watched):
    """q is the law drawn from, and p of node i is the target's law after node i, not i - 1."""
    for row in range(64):
        text = [0, 2, *watched.draft.tokens[row].tolist()]
        for node in range(K + 1):
            pair = tuple(text[node : node + 2])
            p = processed(TARGET.table[pair], 0.7, 4)
            np.testing.assert_allclose(watched.p[row, node], p, atol=1e-6)
            if node < K:
                q = processed(OTHER.table[pair], 0.7, 4)
                np.testing.assert_allclose(watched.draft.probs[row, node], q, atol=1e-6)


def test_law_the_first_draft_token_is_verified_too(watched):
    kept = np.asarray(watched.verdict.num_accepted)
    first = np.asarray(watched.draft.tokens[:, 0])
    p, q = (np.asarray(x)[np.arange(64), 0, first] for x in (watched.p, watched.draft.probs))
    accepted = np.asarray(watched.coins)[:, 0] * q < p
    np.testing.assert_array_equal(kept > 0, accepted)
    assert 0 < accepted.sum() < 64


def test_law_every_round_takes_fresh_coins(watched):
    assert len(np.unique(watched.coins)) == watched.coins.size


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_law_an_empty_residual_gives_no_nan(rule):
    p = jnp.asarray([[[0.25, 0.75], [0.5, 0.5]]])
    verdict = rule.accept(chain([1], p[0, :1]), p, jnp.asarray([[1.0]]))  # no uniform is 1
    assert np.isfinite(verdict.last).all()
    np.testing.assert_allclose(verdict.last.sum(-1), 1)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
def test_law_a_residual_is_normalised_not_put_through_a_softmax(rule):
    p = jnp.asarray([[[0.5, 0.375, 0.125], [0.2, 0.3, 0.5]]])
    verdict = rule.accept(chain([2], [[0.125, 0.125, 0.75]]), p, jnp.asarray([[0.9]]))
    np.testing.assert_allclose(verdict.last, [[0.6, 0.4, 0]], atol=1e-6)


@pytest.mark.parametrize("rule", EVERY, ids=names)
def test_law_of_nothing_accepts_nothing_and_leaves_nothing(rule):
    """Not even the token 0, which the argmax of nothing would be."""
    p = jnp.zeros((1, 2, 3))
    coins = jnp.full((1, 2), -1, jnp.int32) if rule.coupled else jnp.zeros((1, 1))
    verdict = rule.accept(chain([0]), p, coins)
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.last.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
@pytest.mark.parametrize(("coin", "accepted"), [(0.49, 1), (0.51, 0)])
def test_law_a_draft_into_a_dead_end_is_judged_as_any_other(rule, coin, accepted):
    """q = .4 and p = .2 of a token after which nothing is allowed."""
    q = [[0.4, 0.6, 0.0], [0.0, 0.0, 0.0]]
    p = jnp.asarray([[[0.2, 0.1, 0.7], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    verdict = rule.accept(chain([0, 0], q, [True, False]), p, jnp.asarray([[coin, coin]]))
    assert verdict.num_accepted.tolist() == [accepted]
    np.testing.assert_allclose(verdict.last[0], [0, 0, 0] if accepted else [0, 0, 1], atol=1e-6)


# 2. Greedy, and temperatures next to it.

TINY = Sampling(
    temperature=jnp.asarray([0.0, 1e-6, 1e-30, 0.0, 1e-6, 1.0], jnp.float32),
    top_k=jnp.asarray([0, 0, 0, 3, 2, 1], jnp.int32),
    top_p=jnp.asarray([1, 1, 1, 0.5, 1, 1], jnp.float32),
    min_p=jnp.asarray([0, 0, 0, 0, 0.5, 0], jnp.float32),
    stop_ids=jnp.full((6, 1), -1, jnp.int32),
)
PROMPTS = [[1, 2]] * 6


@pytest.fixture(scope="module")
def greedy():
    """Plain greedy decoding, in every row the same."""
    values = sampling_values(6, temperature=0.0)
    return decode(Program(TARGET, Plain(), Coupled()), PROMPTS, 12, values=values)


@pytest.mark.parametrize("verifier", [Block(), Coupled()], ids=names)
def test_greedy_is_temperature_zero_and_almost_zero_and_no_nan(greedy, verifier):
    state = decode(Program(TARGET, DraftModel(OTHER, K), verifier), PROMPTS, 12, values=TINY)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


@pytest.mark.parametrize("rule", RATIO_RULES, ids=names)
@pytest.mark.parametrize("coin", [0.0, 0.5, 0.999999])
def test_greedy_is_judged_by_equality_whatever_the_coin(rule, coin):
    p = jnp.broadcast_to(jnp.asarray([0.0, 1.0, 0.0]), (1, 2, 3))
    for token, accepted in ((1, 1), (2, 0)):
        verdict = rule.accept(chain([token]), p, jnp.asarray([[coin]]))
        assert verdict.num_accepted.tolist() == [accepted]
        assert verdict.last.tolist() == [[0, 1, 0]]


def test_greedy_text_after_a_rejection_is_that_of_plain_decoding(greedy):
    """Wrong positions after a rejection show in the very next tokens."""
    values = sampling_values(6, temperature=0.0)
    state = decode(Program(TARGET, DraftModel(OTHER, K), Block()), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)
    judged = np.asarray(state.stats.outcomes).sum(0)
    assert judged[K, :K].sum() > 0


# A target that counts, with drafts written by hand: one program for kinds 3, 9, 10, 11 and 12.

LETTERS = byte_tokenizer(["<end>"], "abcdefg")
RIGHT = [1, 2, 3, 4, 5, 6, 7, 0, 1]
SCRIPTS = {
    "stop inside an accepted run": (RIGHT, 3, 9),
    "drafted stop that is rejected": ([7, 7, 7, 7, 7, 6, 7, 0, 1], 7, 5),
    "stop at the budget": (RIGHT, 3, 3),
    "budget inside an accepted run": (RIGHT, 6, 3),
    "no drafts": ([-1] * 9, 6, 5),
    "five, two, one and one": ([1, 2, 3, 4, 5, 6, 0, 3, -1], 5, 9),
}


@pytest.fixture(scope="module")
def counting():
    script = np.full((len(SCRIPTS), 16), -1, np.int32)
    for row, (drafts, _, _) in enumerate(SCRIPTS.values()):
        script[row, 1:10] = drafts
    drafter = Scripted(jnp.asarray(script), 4)
    return Decoder(counting_lm(8), drafter, tokenizer=LETTERS, capacity=100)


def counted(decoder, rounds=99, **settings):
    names = ("stop_token_ids", "max_new_tokens")
    stops, budgets = ([case[i] for case in SCRIPTS.values()] for i in (1, 2))
    stops = [[s] for s in stops[:-1]] + [[]]
    settings = dict(zip(names, (stops, budgets), strict=True)) | settings
    return decoder.generate([[0]] * len(SCRIPTS), rounds=rounds, **settings)


@pytest.fixture(scope="module")
def scripted(counting):
    return counted(counting)


ENDS = {
    "stop inside an accepted run": ([1, 2, 3], "ab", "stop"),
    "drafted stop that is rejected": ([1, 2, 3, 4, 5], "abcde", "length"),
    "stop at the budget": ([1, 2, 3], "ab", "stop"),
    "budget inside an accepted run": ([1, 2, 3], "abc", "length"),
}


# 3. Stop.


@pytest.mark.parametrize("name", ENDS)
def test_stop_and_budget_end_a_row_where_they_come_and_counters_say_so(scripted, name):
    row = list(SCRIPTS).index(name)
    found = (scripted.tokens[row], scripted.texts[row], scripted.finish_reasons[row])
    assert found == ENDS[name]
    assert scripted.row_metrics[row].num_tokens == len(scripted.tokens[row])


# 4. Batch.


def test_batch_rows_of_any_length_are_what_they_are_alone():
    """Rows are laid out from the left: what pads a short one comes after it and is not seen."""
    prompts = [[1, 2], [3] * 9, [4], [5, 0, 1, 2, 3], [2, 2], [1]]
    program = Program(TARGET, DraftModel(OTHER, K), Block())
    batch = decode(program, prompts, 12, values=sampling_values(6))
    for row in (0, 1, 4):
        # Its neighbours are others now, and as long as the longest again, for one program.
        others = [prompts[row], *[[0] * 9] * 5]
        alone = decode(program, others, 12, seeds=[row] * 6, values=sampling_values(6))
        np.testing.assert_array_equal(alone.context.tokens[0], batch.context.tokens[row])


def test_batch_rows_with_a_seed_keep_their_text_beside_rows_with_another(greedy):
    program = Program(TARGET, DraftModel(OTHER, K), Block())
    seeds = [[5, 1, 2, 5, 3, 4], [8, 9, 5, 7, 6, 5]]
    one, other = (decode(program, PROMPTS, 12, seeds=s, values=sampling_values(6)) for s in seeds)
    mine = one.context.tokens[0].tolist()
    assert one.context.tokens[3].tolist() == mine
    assert other.context.tokens[2].tolist() == other.context.tokens[5].tolist() == mine
    assert len({tuple(row) for row in np.asarray(other.context.tokens).tolist()}) > 2


# 5. Options silently dropped.


@pytest.mark.parametrize("verifier", [Block(), Coupled()], ids=names)
@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_options_every_filter_at_its_strictest_is_greedy(greedy, verifier, option):
    values = sampling_values(6, temperature=1.0, **option)
    state = decode(Program(TARGET, DraftModel(OTHER, K), verifier), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


@pytest.fixture(scope="module")
def optioned():
    """Greedy, with all that looks back at the text, by a drafter that is always right."""
    decoder = Decoder(TARGET, DraftModel(TARGET, K))
    return decoder.generate(
        [[1, 2], [3]],
        max_new_tokens=16,
        logit_bias={2: 0.5, 4: -0.5},
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=[0.4, 0.0],
        logprobs=2,
    )


def test_options_penalties_and_biases_follow_the_text_inside_a_draft(optioned):
    """Every token is the likeliest after all options, counted over the text before it."""
    for row, text in enumerate(([1, 2], [0, 3])):
        seen = text[row:]
        for token in optioned.tokens[row]:
            logits = np.array(TARGET.table[text[-2], text[-1]], np.float64)
            logits += [0, 0, 0.5, 0, -0.5, 0]
            counts = np.bincount(seen, minlength=V)
            scaled = np.where(logits < 0, logits * 1.3, logits / 1.3)
            penalty = 0.2 + (0.4, 0.0)[row] * counts
            logits = np.where(counts > 0, scaled - penalty, logits)
            assert token == logits.argmax()
            text, seen = [*text, token], [*seen, token]
    assert optioned.metrics.draft_acceptance_rate > 0.9  # and the drafter counts alike


def test_options_logprobs_of_accepted_tokens_are_there_and_are_the_targets(optioned):
    for row, text in enumerate(([1, 2], [0, 3])):
        assert any(optioned.drafted[row])
        for token, found in zip(optioned.tokens[row], optioned.logprobs[row], strict=True):
            want = jax.nn.log_softmax(TARGET.table[text[-2], text[-1]])[token]
            assert found == pytest.approx(float(want), abs=1e-5)
            assert found < 0
            text = [*text, token]


def test_options_min_p_and_bias_shape_what_is_drawn():
    """At a high temperature all but two tokens are out of the question."""
    decoder = Decoder(TARGET, DraftModel(OTHER, K))
    prompts = [[1, 2], [3], [2], [4]]
    settings = {"temperature": 3.0, "max_new_tokens": 30, "seed": 1}
    bias = [{1: 1e4, 5: 1e4}, dict.fromkeys((0, 2, 3, 4), -10000.0), {}, {}]
    result = decoder.generate(prompts, logit_bias=bias, min_p=[0.0, 0.0, 0.9, 0.0], **settings)
    assert set(result.tokens[0]) == set(result.tokens[1]) == {1, 5}
    assert set(result.tokens[3]) == set(range(V))
    text = [0, 2]
    for token in result.tokens[2]:
        law = jax.nn.softmax(TARGET.table[text[-2], text[-1]] / 3)
        assert law[token] >= 0.9 * law.max() - 1e-6
        text.append(token)


# 6. Vocabulary.


@struct.dataclass
class Spoken(TableLM):
    """A table that comes with a tokenizer, as loaded models do."""

    tokenizer: object = struct.field(pytree_node=False, default=None)


SIX = byte_tokenizer(["<end>"], "abcde")


def padded_to(table, size, amount):
    """Its head and its embedding are larger than its vocabulary; no token has the extra ids."""
    extra = size - V
    return Spoken(jnp.pad(table, ((0, extra),) * 3, constant_values=amount), tokenizer=SIX)


@pytest.mark.parametrize("verifier", [Block(), Coupled()], ids=names)
def test_vocabulary_padded_to_different_sizes_has_no_mass_on_either_side(greedy, verifier):
    """Whatever the models' own logits of the extra ids: here they are the largest of all."""
    target, draft = padded_to(TARGET.table, 9, 80.0), padded_to(OTHER.table, 8, 90.0)
    decoder = Decoder(target, DraftModel(draft, K), verifier=verifier)
    result = decoder.generate(
        [[1, 2]] * 3, temperature=[0, 1.0, 5.0], stop_token_ids=[], max_new_tokens=12, logprobs=0
    )
    assert result.tokens[0] == greedy.context.tokens[0, 2:].tolist()
    assert all(token < V for row in result.tokens for token in row)
    assert result.metrics.num_accepted_tokens > 5  # drafts are judged by laws without them, too
    raw = jax.nn.log_softmax(TARGET.table[1, 2])[result.tokens[1][0]]
    assert result.logprobs[1][0] == pytest.approx(float(raw), abs=1e-5)


def test_vocabulary_of_another_token_map_is_refused_when_the_decoder_is_built():
    other = Spoken(OTHER.table, tokenizer=byte_tokenizer(["<end>"], "abced"))
    with pytest.raises(ValueError, match="^drafter: .*token map"):
        Decoder(padded_to(TARGET.table, 8, 0.0), DraftModel(other, K))
    with pytest.raises(ValueError, match="^drafter: .*8 tokens.* 6"):
        Decoder(TARGET, DraftModel(padded_to(OTHER.table, 8, 0.0), K))


@struct.dataclass
class Padded(TableLM):
    """A head with two columns more than there are tokens, and the largest logits in them."""

    @property
    def vocab_size(self):
        return self.table.shape[-1] - 2


def test_vocabulary_ids_that_only_pad_the_head_are_never_emitted(greedy):
    padded = Padded(jnp.pad(TARGET.table, ((0, 2),) * 3, constant_values=50.0))
    values = sampling_values(6, temperature=0.0)
    state = decode(Program(padded, Plain(), Coupled()), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)


# 7. Cache: drafts look further than the text may go.


def test_cache_drafts_beyond_the_last_token_that_fits_do_no_harm():
    """The capacity holds prompt and budget exactly, and every draft looks beyond it."""
    script = jnp.broadcast_to(jnp.arange(8, dtype=jnp.int32), (2, 8))
    program = Program(counting_lm(8), Scripted(script, 4), Token())
    state = decode(program, [[0], [0, 1, 2, 3]], 4)
    assert state.context.tokens.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], list(range(8))]
    assert state.cache.tokens[1, :7].tolist() == list(range(7))
    assert state.stats.rounds.tolist() == [1, 1]


def test_cache_of_the_draft_holds_the_last_accepted_token_after_full_acceptance():
    """A token that is missing there makes the next draft wrong."""
    values = sampling_values(6).replace(temperature=jnp.asarray([0.0, 1, 1, 1, 1, 0], jnp.float32))
    state = decode(Program(TARGET, DraftModel(TARGET, K), Block()), PROMPTS, 12, values=values)
    assert state.stats.rounds.tolist() == [12 // (K + 1)] * 6
    assert state.drafted.sum(1).tolist() == [K * 12 // (K + 1)] * 6


def test_cache_of_a_draft_model_that_is_shorter_than_the_target_is_never_overrun(greedy):
    """Beyond its own maximum length it does not draft, and the text is the target's."""
    short = TableLM(TARGET.table, max_length=8)
    values = sampling_values(6, temperature=0.0)
    state = decode(Program(TARGET, DraftModel(short, K), Block()), PROMPTS, 12, values=values)
    np.testing.assert_array_equal(state.context.tokens, greedy.context.tokens)
    assert state.drafted[0, 2:6].tolist() == [True, True, True, False]
    assert not state.drafted[:, 10:].any()


# 8. Weights.


def test_weights_are_each_loaded_once_or_tied_on_purpose_or_named():
    table = llama.weight_table(CONFIG)
    tensors = tensors_of(table)
    weights = assemble(table, tensors)
    assert tensors.readings == {tensor: x.size for tensor, x in tensors.items()}
    assert weights
    name = sorted(tensors)[0]
    del tensors[name]
    with pytest.raises(ValueError, match=f"'{name}'.* missing"):
        assemble(table, tensors)


# 9. Progress.


def test_progress_is_one_token_a_round_without_any_draft(scripted):
    row = list(SCRIPTS).index("no drafts")
    assert scripted.tokens[row] == [1, 2, 3, 4, 5]
    metrics = scripted.row_metrics[row]
    assert (metrics.num_rounds, metrics.num_draft_tokens) == (5, 0)
    assert not any(scripted.drafted[row])


# 10. Streaming.


@pytest.mark.parametrize("rounds", [1, 2])
def test_streaming_chunks_put_together_are_the_result(counting, scripted, rounds):
    stops, budgets = ([case[i] for case in SCRIPTS.values()] for i in (1, 2))
    stream = counting.stream(
        [[0]] * len(SCRIPTS),
        rounds=rounds,
        stop_token_ids=[[s] for s in stops[:-1]] + [[]],
        max_new_tokens=budgets,
    )
    texts, tokens = [""] * len(SCRIPTS), [[] for _ in SCRIPTS]
    for piece in stream:
        texts[piece.row] += piece.text
        tokens[piece.row] += piece.tokens
    assert (texts, tokens) == (scripted.texts, scripted.tokens)


# 11. Compiling.


def test_compiling_happens_once_whatever_the_prompt_length_seed_and_temperature(counting, scripted):
    programs = [compiled.begin, compiled.advance]
    before = [p._cache_size() for p in programs]
    for length in (1, 7, 40, 90):
        counting.generate([[0] * length] * len(SCRIPTS), rounds=9, max_new_tokens=9)
    for settings in ({"seed": None}, {"temperature": 0.7, "seed": 3}, {"top_p": 0.5, "top_k": 2}):
        counted(counting, **settings)
    assert [p._cache_size() for p in programs] == before


# 12. Metrics.


def test_metrics_of_a_run_worked_by_hand(scripted):
    """Four drafts each: all right; one right; none right, with room for one; then no draft."""
    row = list(SCRIPTS).index("five, two, one and one")
    metrics = scripted.row_metrics[row]
    assert scripted.tokens[row] == [1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert metrics.num_rounds == 4
    assert metrics.mean_acceptance_length == 9 / 4  # the bonus token counts
    assert metrics.num_accepted_tokens == 5
    assert metrics.acceptance_rate_at == [2 / 3, 1 / 2, 1.0, 1.0]  # given that it was judged
    assert metrics.acceptance_histogram == [2, 1, 0, 0, 1]
