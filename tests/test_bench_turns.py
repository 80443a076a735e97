"""What is asked: prompts of every turn, groups, and one capacity for all."""

import copy

import jax
import pytest
from tiny_folder import write_tiny_folder

import specjax
from specjax import compiled
from specjax.bench.questions import Question
from specjax.bench.turns import Asking, Turn, ask, groups_of, padded
from specjax.drafters import NGram

SCHEMA = '{"type": "boolean"}'


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return specjax.load(write_tiny_folder(tmp_path_factory.mktemp("models") / "big"))


@pytest.fixture(scope="module")
def plain(target):
    return specjax.Decoder(target)


def turns_of(*categories):
    return [
        Turn(Question(f"q{i}", category, ("Hi",)), 1, [1 + i], {"max_new_tokens": 4, "seed": i})
        for i, category in enumerate(categories)
    ]


def test_a_second_turn_follows_the_answer_of_plain_decoding(plain):
    question = Question("q", "chat", ("aba abacus", "once more"))
    first, second = ask(plain, [question], Asking(max_new_tokens=6))
    asked = [{"role": "user", "content": "aba abacus"}]
    answer = plain.generate(asked, max_new_tokens=6, seed=0).texts[0]
    assert answer
    said = [{"role": "assistant", "content": answer}, {"role": "user", "content": "once more"}]
    assert first.prompt == plain.encode([asked])[0]
    assert second.prompt == plain.encode([asked + said])[0]
    assert (first.number, second.number) == (1, 2)
    assert plain.tokenizer.decode(second.prompt) == f"aba abacus{answer}once more>"


def test_without_a_template_turns_are_texts(target):
    bare = copy.copy(target.tokenizer)
    bare.chat_template = None
    plain = specjax.Decoder(target, tokenizer=bare)
    (turn,) = ask(plain, [Question("q", "chat", ("aba",))], Asking())
    assert turn.prompt == bare.encode("aba")


def test_what_is_given_wins_over_a_questions_own(plain):
    questions = [
        Question("a", "chat", ("aba",), max_new_tokens=3, temperature=0.7),
        Question("b", "chat", ("aba",)),
    ]
    own = [turn.settings for turn in ask(plain, questions, Asking(seed=5))]
    assert [x["max_new_tokens"] for x in own] == [3, 128]
    assert [x["temperature"] for x in own] == [0.7, 0.0]
    assert [x["seed"] for x in own] == [5, 6]
    given = [turn.settings for turn in ask(plain, questions, Asking(0.0, 9))]
    assert [(x["temperature"], x["max_new_tokens"]) for x in given] == [(0.0, 9)] * 2


def test_a_schema_becomes_a_grammar_that_is_built_once(plain):
    questions = [Question(i, "json", ("aba",), json_schema=SCHEMA) for i in "ab"]
    one, other = (turn.settings["grammar"] for turn in ask(plain, questions, Asking()))
    assert one is other
    assert one.accepts(plain.tokenizer.encode("true"))


def test_a_question_that_does_not_fit_is_named(plain):
    long = Question("q7", "chat", ("aba " * 200,))
    with pytest.raises(ValueError, match=r"questions: q7, turn 1: prompts: row 0 has 802 tokens"):
        list(ask(plain, [long], Asking()))


def test_groups_are_of_one_category_and_filled_from_its_front():
    turns = turns_of("a", "b", "a", "a", "b")
    groups = groups_of(turns, 2)
    ids = [[turn.question.id for turn in group.turns] for group in groups]
    assert ids == [["q0", "q2"], ["q3", "q0"], ["q1", "q4"]]
    assert [group.num_repeated for group in groups] == [0, 1, 0]
    (wide,) = groups_of(turns[1:2], 3)
    assert [turn.question.id for turn in wide.turns] == ["q1"] * 3
    assert wide.settings == {"max_new_tokens": [4] * 3, "seed": [1] * 3}


@pytest.mark.parametrize("capacity", [40, 300])
def test_a_padded_call_answers_the_same(plain, capacity):
    decoder = specjax.Decoder(plain.program.target, NGram(3))
    prompts = [[5, 6, 7, 5, 6], [9]]
    settings = {"max_new_tokens": 20, "temperature": [0.0, 0.8], "seed": 3}
    expected = decoder.generate(prompts, **settings)
    call = padded(decoder.prepare(prompts, **settings), capacity)
    assert call.request.tokens.shape == (2, capacity)
    output, _ = compiled.generate(call.program, call.request, chunk=decoder.prefill_chunk)
    found = decoder.collect(call, jax.device_get(output))
    assert found.tokens == expected.tokens
    assert found.drafted == expected.drafted


def test_a_capacity_too_small_is_refused(plain):
    call = plain.prepare([[1, 2, 3]], max_new_tokens=20)
    with pytest.raises(ValueError, match="capacity: 22 is below the 23 tokens of a row"):
        padded(call, 22)
