"""Where rows end: each of the first tokens as the stop, every budget, every draft length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from hand_drafters import Scripted

from specjax import Decoder
from specjax.drafters import DraftModel
from specjax.testing import TableLM

ROWS, FREE, SEED = 30, 44, 3
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
TOKENIZER = byte_tokenizer(["<end>"], LETTERS[1:])
V = len(LETTERS)
TARGET = TableLM.random(jax.random.key(1), V, scale=2.0)
DRAFT = TableLM(TARGET.table + 0.5 * TableLM.random(jax.random.key(2), V).table)
PROMPT = [1, 2, 3]
PLAIN = Decoder(TARGET, tokenizer=TOKENIZER, capacity=120)
TEMPERATURES = [0.0, 1.0]


def decode(decoder, temperature, **settings):
    """The same prompt and seed in every row: rows differ by their ends alone."""
    settings = {"stop_token_ids": [], **settings}
    return decoder.generate(
        [PROMPT] * ROWS, temperature=temperature, seed=[SEED] * ROWS, **settings
    )


@pytest.fixture(scope="module")
def plain():
    """Plain decoding with the same settings, each made once."""
    made = {}

    def get(temperature, **settings):
        name = repr((temperature, settings))
        if name not in made:
            made[name] = decode(PLAIN, temperature, **settings)
        return made[name]

    return get


@pytest.fixture(scope="module")
def speculative():
    """A draft model that is right about half the time."""
    drafter = DraftModel(DRAFT, 4)
    return Decoder(TARGET, drafter, verifier="coupled", tokenizer=TOKENIZER, capacity=120)


def half_right(k, tokens):
    """Drafts K of these tokens at a time, one in five of them wrong: runs of every length."""
    script = np.zeros(120, np.int32)
    script[len(PROMPT) : len(PROMPT) + FREE] = tokens
    script[5::5] = (script[5::5] + 1) % V
    drafter = Scripted(jnp.broadcast_to(jnp.asarray(script), (ROWS, 120)), k)
    return Decoder(TARGET, drafter, verifier="coupled", tokenizer=TOKENIZER, capacity=120)


def cut(tokens, stop, budget):
    """What a row should emit and why it ends: the earlier of stop and budget, the stop on a tie."""
    if stop in tokens[:budget]:
        return tokens[: tokens.index(stop) + 1], "stop", stop
    return tokens[:budget], "length", None


def expect(result, free, stops, budgets):
    """Rows are the undisturbed text, cut; every counter is that of the tokens shown."""
    for row in range(ROWS):
        tokens, reason, stop = cut(free.tokens[row], stops[row], budgets[row])
        shown = tokens[:-1] if reason == "stop" else tokens
        assert result.tokens[row] == tokens
        assert result.texts[row] == TOKENIZER.decode(shown)
        assert (result.finish_reasons[row], result.stopped_by[row]) == (reason, stop)
        metrics, marks = result.row_metrics[row], free.drafted[row]
        assert result.drafted[row] == marks[: len(tokens)]
        assert metrics.num_tokens == len(tokens)
        assert metrics.num_accepted_tokens <= sum(result.drafted[row])
        assert metrics.num_clipped_tokens == left_of_the_round(marks, len(tokens))
    assert result.metrics.num_tokens == sum(map(len, result.tokens))


def left_of_the_round(marks, num):
    """Tokens that the round of the last of ``num`` tokens had still to show; it ends unmarked."""
    return marks.index(False, num - 1) - (num - 1) if num else 0


def same_answer(one, other):
    names = ("tokens", "texts", "finish_reasons", "stopped_by")
    assert [getattr(one, n) for n in names] == [getattr(other, n) for n in names]


def sweep(decoder, plain, k, temperature):
    free = decode(decoder, temperature, max_new_tokens=FREE, draft_length=k)
    stops = free.tokens[0][:ROWS]
    assert len(set(stops)) > 12
    assert any(free.drafted[0])  # drafts are accepted, so runs are cut
    assert not all(free.drafted[0][:8])
    for budget in (*range(k + 2), FREE - 8):
        settings = {"max_new_tokens": budget, "stop_token_ids": [[s] for s in stops]}
        result = decode(decoder, temperature, draft_length=k, **settings)
        expect(result, free, stops, [budget] * ROWS)
        same_answer(result, plain(temperature, **settings))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("k", range(1, 8))
def test_any_of_the_first_thirty_tokens_may_be_the_stop_under_any_budget(plain, k, temperature):
    """Draft lengths are caps of one program here, and programs of their own below."""
    text = plain(temperature, max_new_tokens=FREE).tokens[0]
    sweep(half_right(7, text), plain, k, temperature)


@pytest.mark.slow
@pytest.mark.parametrize("k", range(1, 7))
def test_so_it_is_in_a_program_for_each_draft_length(plain, k):
    for temperature in TEMPERATURES:
        text = plain(temperature, max_new_tokens=FREE).tokens[0]
        sweep(half_right(k, text), plain, k, temperature)


@pytest.mark.slow
def test_so_it_is_with_a_draft_model(plain, speculative):
    for temperature in TEMPERATURES:
        sweep(speculative, plain, 4, temperature)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_stop_exactly_at_the_budget_is_a_stop(plain, speculative, temperature):
    free = decode(speculative, temperature, max_new_tokens=FREE)
    stops = free.tokens[0][:ROWS]
    first = [stops.index(s) + 1 for s in stops]
    for less in (0, 1):
        budgets = [n - less for n in first]
        settings = {"max_new_tokens": budgets, "stop_token_ids": [[s] for s in stops]}
        result = decode(speculative, temperature, **settings)
        assert set(result.finish_reasons) == {"length" if less else "stop"}
        expect(result, free, stops, budgets)
        same_answer(result, plain(temperature, **settings))


def test_the_first_of_budget_total_length_and_stop_ends_a_row(plain, speculative):
    free = decode(speculative, 1.0, max_new_tokens=FREE)
    stops = free.tokens[0][:ROWS]
    rng = np.random.default_rng(0)
    budgets, totals = rng.integers(0, 20, ROWS).tolist(), rng.integers(1, 24, ROWS).tolist()
    settings = {"max_new_tokens": budgets, "stop_token_ids": [[s] for s in stops]}
    for total in (totals, 9, 3, 1):  # one a row; one for all; that of the prompt; below it
        each = total if isinstance(total, list) else [total] * ROWS
        least = [max(min(b, t - len(PROMPT)), 0) for b, t in zip(budgets, each, strict=True)]
        result = decode(speculative, 1.0, max_length=total, **settings)
        expect(result, free, stops, least)
        same_answer(result, plain(1.0, max_length=total, **settings))
    assert set(result.finish_reasons) == {"length"}
    assert result.texts == [""] * ROWS


def test_rows_with_several_stops_end_at_the_first_and_rows_with_none_at_the_budget(speculative):
    free = decode(speculative, 0.0, max_new_tokens=FREE)
    tokens = free.tokens[0]
    mine = [[] if row % 3 == 0 else tokens[row : row + 1 + row % 3] for row in range(ROWS)]
    result = decode(speculative, 0.0, max_new_tokens=36, stop_token_ids=mine)
    first = [min(ids, key=tokens.index) if ids else None for ids in mine]
    expect(result, free, first, [36] * ROWS)
    assert result.finish_reasons[::3] == ["length"] * 10


def test_a_cap_of_nothing_decodes_plainly_and_no_cap_is_passed_by_a_drafter(plain, speculative):
    """Draft lengths change how soon tokens come, never which."""
    caps = [row % 6 for row in range(ROWS)]
    settings = {"max_new_tokens": FREE, "stop_token_ids": []}
    for temperature in TEMPERATURES:
        result = decode(speculative, temperature, draft_length=caps, **settings)
        same_answer(result, plain(temperature, **settings))
        for cap, metrics, marks in zip(caps, result.row_metrics, result.drafted, strict=True):
            longest = np.flatnonzero(metrics.acceptance_histogram).max()
            assert longest == min(cap, 4)
            assert metrics.num_draft_tokens <= min(cap, 4) * metrics.num_rounds
            assert any(marks) == (cap > 0)
            assert cap > 0 or metrics.num_rounds == FREE
    same = decode(speculative, 1.0, draft_length=None, **settings)
    assert same.drafted == decode(speculative, 1.0, **settings).drafted


def test_rows_with_a_seed_repeat_beside_rows_without_one(speculative):
    decoder, prompts = speculative, [PROMPT] * ROWS
    settings = {"max_new_tokens": 30, "temperature": 1.0, "stop_token_ids": []}
    seeds = [row if row % 2 else None for row in range(ROWS)]
    one, other = (decoder.generate(prompts, seed=seeds, **settings) for _ in range(2))
    assert one.tokens[1::2] == other.tokens[1::2]
    assert all(a != b for a, b in zip(one.tokens[::2], other.tokens[::2], strict=True))
    assert one.seeds[1::2] == list(range(1, ROWS, 2))
    assert decoder.generate(prompts, seed=one.seeds, **settings).tokens == one.tokens


def test_a_stop_id_that_no_token_of_the_target_has_is_refused_and_the_tokenizers_own_is_not():
    """A tokenizer may know of more tokens than a small head has."""
    with pytest.raises(ValueError, match=f"^stop_token_ids: .*{V}"):
        PLAIN.prepare([PROMPT], max_new_tokens=1, stop_token_ids=[V])
    own = byte_tokenizer(["<end>"], LETTERS[1:], stop_ids=[0, V + 5])
    call = Decoder(TARGET, tokenizer=own).prepare([PROMPT], max_new_tokens=1)
    assert call.request.sampling.stop_ids.tolist() == [[0, -1, -1, -1]]
