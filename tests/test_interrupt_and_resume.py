"""Ctrl-C between dispatches loses nothing, and a call goes on as if it had never ended."""

import dataclasses

import jax
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from specjax import Decoder, compiled, loop, rows
from specjax.drafters import DraftModel, NGram
from specjax.loop import Program
from specjax.testing import TableLM
from specjax.testing.exact import sequence_law
from specjax.testing.statistics import chi_square_p, decode, sampling_values
from specjax.types import OUT_OF_BUDGET
from specjax.verify import Block

TEXTS = ["a", "b", "c", " ", "ab", "bc", "ca", "é"]
TOKENIZER = byte_tokenizer(["<end>", "<pad>"], TEXTS, cut="🤖", stop_ids=[0])
V = 14
TARGET = TableLM.random(jax.random.key(0), V, scale=1.5)
DRAFT = TableLM(TARGET.table + 0.5 * TableLM.random(jax.random.key(1), V).table)
PROMPTS = [[2, 3], [4], [5, 6, 7] * 10, [8, 9, 2] * 33 + [3]]
TEMPERATURE = [0.0, 1.0, 1.0, 0.7]

# Ctrl-C.


@pytest.fixture(scope="module")
def decoder():
    """Two samples of each prompt, with log-probabilities: every test runs this one program."""
    return Decoder(TARGET, NGram(3), tokenizer=TOKENIZER, capacity=120)


CALL = {"n": 2, "logprobs": 2, "temperature": 1.0, "seed": 4, "max_new_tokens": 30}
ROWS = 4


@pytest.fixture(scope="module")
def whole(decoder):
    return decoder.generate(PROMPTS[:2], rounds=10**6, **CALL)


def interrupts(monkeypatch, after):
    """Ctrl-C comes when ``after`` dispatches are done."""
    advance, done = compiled.advance, []

    def interrupted(*arguments):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(1)
        return advance(*arguments)

    monkeypatch.setattr(compiled, "advance", interrupted)


def test_rounds_change_nothing_but_when_a_call_can_be_left(decoder, whole):
    assert set(whole.finish_reasons) == {"stop", "length"}
    for rounds in (1, 3):
        result = decoder.generate(PROMPTS[:2], rounds=rounds, **CALL)
        for name in ("tokens", "texts", "finish_reasons", "drafted", "logprobs", "samples"):
            assert getattr(result, name) == getattr(whole, name)
        np.testing.assert_array_equal(result.metrics.outcomes, whole.metrics.outcomes)


@pytest.mark.parametrize("after", [1, 4])
def test_an_interrupted_call_returns_what_there_is(decoder, whole, monkeypatch, after):
    interrupts(monkeypatch, after)
    result = decoder.generate(PROMPTS[:2], rounds=1, **CALL)
    ended = [len(a) == len(b) for a, b in zip(result.tokens, whole.tokens, strict=True)]
    assert not all(ended)
    for row in range(ROWS):
        num = len(result.tokens[row])
        assert num >= after or ended[row]
        assert result.tokens[row] == whole.tokens[row][:num]
        assert result.logprobs[row] == whole.logprobs[row][:num]
        assert result.drafted[row] == whole.drafted[row][:num]
        assert result.row_metrics[row].num_tokens == num
        reason = whole.finish_reasons[row] if ended[row] else "interrupted"
        assert result.finish_reasons[row] == reason
        if not ended[row]:
            assert result.texts[row] == TOKENIZER.decode(result.tokens[row])
            assert result.stopped_by[row] is None
    assert result.seeds == whole.seeds


def test_an_interrupt_while_the_host_waits_keeps_all_that_had_come(decoder, whole, monkeypatch):
    get, seen = jax.device_get, []

    def interrupted(output):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(get(output))
        return seen[-1]

    monkeypatch.setattr(jax, "device_get", interrupted)
    result = decoder.generate(PROMPTS[:2], rounds=1, **CALL)
    for row in range(ROWS):
        num = int(seen[-1].length[row] - seen[-1].begin[row])
        assert result.tokens[row] == whole.tokens[row][:num]
        assert num >= 2 or whole.finish_reasons[row] == "stop"


def test_an_interrupt_before_anything_has_come_is_the_callers(decoder, monkeypatch):
    interrupts(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        decoder.generate(PROMPTS[:2], rounds=1, **CALL)


def test_a_stream_left_in_the_middle_has_a_result_that_holds_every_piece(decoder, whole):
    stream = decoder.stream(PROMPTS[:2], rounds=2, **CALL)
    tokens, texts, likely = ([[] for _ in range(ROWS)] for _ in range(3))
    for number, piece in enumerate(stream):
        tokens[piece.row] += piece.tokens
        texts[piece.row].append(piece.text)
        likely[piece.row] += piece.logprobs
        if number == 5:  # in the middle of a dispatch's pieces
            break
    result = stream.result
    for row in range(ROWS):
        assert result.tokens[row][: len(tokens[row])] == tokens[row]
        assert result.texts[row].startswith("".join(texts[row]))
        assert result.logprobs[row][: len(likely[row])] == likely[row]
        assert whole.tokens[row][: len(result.tokens[row])] == result.tokens[row]
    assert "interrupted" in result.finish_reasons
    for piece in stream:  # and it can be taken up again
        tokens[piece.row] += piece.tokens
        texts[piece.row].append(piece.text)
    assert tokens == stream.result.tokens == whole.tokens
    assert ["".join(row) for row in texts] == stream.result.texts == whole.texts


def test_an_interrupted_stream_hands_out_what_had_come_and_no_more(decoder, whole, monkeypatch):
    interrupts(monkeypatch, 2)
    stream = decoder.stream(PROMPTS[:2], **CALL)
    pieces = []
    with pytest.raises(KeyboardInterrupt):
        pieces += stream
    assert list(stream) == []
    assert all(stream.result.tokens)


def test_samples_of_a_prompt_stream_beside_each_other(decoder, whole):
    pieces = list(decoder.stream(PROMPTS[:2], **CALL))
    for row in range(ROWS):
        mine = [piece for piece in pieces if piece.row == row]
        assert [t for piece in mine for t in piece.tokens] == whole.tokens[row]
        assert [x for piece in mine for x in piece.top_logprobs] == whole.top_logprobs[row]
        assert "".join(piece.text for piece in mine) == whole.texts[row]
    assert whole.tokens[0] != whole.tokens[1]
    assert whole.samples == [0, 1, 0, 1]


def test_a_call_in_rounds_keeps_no_state(decoder):
    with pytest.raises(ValueError, match="^keep_state: "):
        decoder.generate(PROMPTS[:2], rounds=1, keep_state=True, **CALL)
    with pytest.raises(ValueError, match="^rounds: "):
        decoder.generate(PROMPTS[:2], rounds=0, **CALL)


# Resuming: 110 tokens of prompt and output fit one bucket of capacity, 162 the next.

DRAFTERS = {"ngram": NGram(3), "draft model": DraftModel(DRAFT, 3)}
FULL = {
    "temperature": TEMPERATURE,
    "seed": 9,
    "repetition_penalty": 1.1,
    "presence_penalty": [0.0, 0.2, 0.0, 0.1],
    "frequency_penalty": 0.05,
    "no_repeat_ngram_size": [4, 0, 3, 3],
    "stop": [[], [], ["c a"], ["é🤖", "bcab", "aaab"]],
    "min_new_tokens": [0, 14, 0, 3],
    "logprobs": 2,
    "stop_token_ids": [[], [0], [0], []],
    "keep_state": True,
}


@pytest.fixture(
    scope="module", params=["ngram", pytest.param("draft model", marks=pytest.mark.slow)]
)
def resumable(request):
    return Decoder(
        TARGET, DRAFTERS[request.param], verifier="coupled", tokenizer=TOKENIZER, capacity=200
    )


@pytest.fixture(scope="module")
def longer():
    """What a single call gives, decoded plainly: coupled drafts change no token."""
    plain = Decoder(TARGET, tokenizer=TOKENIZER, capacity=200)
    return plain.generate(PROMPTS, max_new_tokens=62, **FULL | {"keep_state": False})


def same(one, other):
    for name in ("tokens", "texts", "finish_reasons", "stopped_by", "top_logprobs", "seeds"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("logprobs", "processed_logprobs"):
        for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    for result in (one, other):
        assert [m.num_tokens for m in result.row_metrics] == [len(t) for t in result.tokens]
        assert [len(d) for d in result.drafted] == [len(t) for t in result.tokens]


def test_a_call_resumed_is_one_longer_call(resumable, longer):
    """Within the capacity and beyond it, again and again, whatever looks back at the text."""
    short = resumable.generate(PROMPTS, max_new_tokens=10, **FULL)
    assert short.finish_reasons.count("length") > 1
    middle = resumable.resume(short, max_new_tokens=12)
    lengths = [len(row) for row in middle.tokens]
    budgets = [22 if reason == "length" else 10 for reason in short.finish_reasons]
    assert all(n <= b for n, b in zip(lengths, budgets, strict=True))
    same(middle, resumable.generate(PROMPTS, max_new_tokens=22, **FULL))
    for row, reason in enumerate(short.finish_reasons):
        if reason == "stop":
            assert middle.tokens[row] == short.tokens[row]
    long = resumable.resume(middle, max_new_tokens=40)
    same(long, longer)
    assert set(longer.finish_reasons) == {"stop", "length"}
    assert any(isinstance(stop, str) for stop in longer.stopped_by)
    # The state of a result is used up by nothing.
    same(resumable.resume(short, max_new_tokens=12), middle)
    assert short.suspended[1].context.length.tolist() == [
        len(p) + len(t) for p, t in zip(PROMPTS, short.tokens, strict=True)
    ]


def test_a_row_that_had_no_budget_begins_when_it_is_resumed(resumable):
    """Its prompt has not been read, since nothing was to come."""
    short = resumable.generate(PROMPTS, max_new_tokens=[0, 10, 0, 1], **FULL)
    assert [len(row) for row in short.tokens] == [0, 10, 0, 1]
    same(
        resumable.resume(short, max_new_tokens=12),
        resumable.generate(PROMPTS, max_new_tokens=[12, 22, 12, 13], **FULL),
    )


def test_resuming_by_nothing_changes_nothing(resumable):
    short = resumable.generate(PROMPTS, max_new_tokens=10, **FULL)
    same(resumable.resume(short, max_new_tokens=0), short)


def test_what_cannot_be_resumed_is_refused(resumable):
    short = resumable.generate(PROMPTS, max_new_tokens=10, **FULL)
    for budget, name in ((-1, "max_new_tokens"), (1.5, "max_new_tokens"), (91, "prompts")):
        with pytest.raises(ValueError, match=f"^{name}: "):
            resumable.resume(short, max_new_tokens=budget)
    with pytest.raises(ValueError, match="^result: "):
        resumable.resume(dataclasses.replace(short, suspended=None))


# The law over a cut.

SMALL, NUM, CUT, PROMPT = 4, 4, 2, [1, 2, 1]


@jax.jit
def resumed(program, state, limit):
    state = rows.resume(program, state, limit, len(PROMPT) + NUM, chunk=32)
    return loop.complete(program, state)


@pytest.mark.slow
def test_under_block_verification_a_resumed_call_keeps_its_law():
    target, draft = (TableLM.random(jax.random.key(i), SMALL) for i in (0, 1))
    program, batch = Program(target, DraftModel(draft, 3), Block()), 20_000
    state = decode(program, [PROMPT] * batch, CUT)
    state = resumed(program, state, state.limit + (NUM - CUT))
    assert (state.finish == OUT_OF_BUDGET).all()
    out = np.asarray(state.context.tokens)[:, len(PROMPT) :]
    cells = out @ (SMALL ** np.arange(NUM)[::-1])
    counts = np.bincount(cells, minlength=SMALL**NUM).reshape((SMALL,) * NUM)
    assert chi_square_p(counts, sequence_law(target, PROMPT, NUM, sampling_values(1))) > 1e-6
