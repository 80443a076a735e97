"""Made questions: the same for a seed, of the promised sizes, with answers that can be right."""

import ast
import difflib
import json
import random
import re

import pytest
from toy_tokenizer import ToyTokenizer

from specjax.bench import workloads
from specjax.bench.workloads import (
    PEOPLE,
    WORKLOADS,
    code_task,
    editing_task,
    json_task,
    long_context_task,
    make,
)
from specjax.grammar import json_schema

SEEDS = range(20)


def text_of(name, seed=0):
    return [question.turns[0] for question in make([name], seed)]


def shared(left, right):
    """The part of ``right`` that stands in ``left``, too, in order."""
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(right)


def test_a_seed_makes_the_same_questions_and_another_seed_makes_others():
    assert make(list(WORKLOADS), 3) == make(list(WORKLOADS), 3)
    for name in WORKLOADS:
        assert make([name], 3) == [q for q in make(list(WORKLOADS), 3) if q.category == name]
        assert not set(text_of(name, 3)) & set(text_of(name, 4)) or name in ("classification",)
        assert text_of(name, 3) != text_of(name, 4)


def test_each_makes_a_handful_of_different_questions_with_ids_of_their_own():
    questions = [q for seed in SEEDS for q in make(list(WORKLOADS), seed)]
    assert len({question.id for question in questions}) == len(questions)
    for seed in SEEDS:
        for name in WORKLOADS:
            assert len(set(text_of(name, seed))) == workloads.NUM_QUESTIONS
    assert all("{" not in q.turns[0] for q in questions if q.category != "code")


def test_settings_are_of_the_workloads_that_need_them():
    for name in WORKLOADS:
        for question in make([name], 0):
            assert question.max_new_tokens == (4 if name == "classification" else None)
            assert question.temperature == (1.5 if name == "open-writing" else None)
            assert (question.json_schema is not None) == (name == "json")


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"^workloads: there is no 'prose'; known are \['editing'"):
        make(["code", "prose"], 0)
    assert make(["json", "json"], 0) == make(["json"], 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_edit_is_a_paragraph_of_which_a_few_words_are_wrong(seed):
    prompt, answer = editing_task(random.Random(seed))
    ask, damaged = prompt.split("\n\n")
    right, wrong = re.findall("|".join(PEOPLE), ask)
    repaired = damaged.replace(wrong, right).split(" ")
    assert wrong not in answer
    assert damaged.count(wrong) == answer.count(right) > 0
    differing = [(a, b) for a, b in zip(repaired, answer.split(" "), strict=True) if a != b]
    assert len(differing) == workloads.NUM_MISSPELLED
    assert all(abs(len(a) - len(b)) == 1 for a, b in differing)
    assert 200 < len(answer.split()) < 400
    assert 0.95 < shared(damaged, answer) < 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_code_change_is_real_and_small(seed):
    prompt, answer = code_task(random.Random(seed))
    ask, module = prompt.split("\n\n", 1)
    before, after = ast.unparse(ast.parse(module)), ast.unparse(ast.parse(answer))
    if ask.startswith("Rename"):
        old, new = re.match(r"Rename (\w+) to (\w+)", ask).groups()
        assert new not in before
        assert old in before
        assert after == re.sub(rf"\b{old}\b", new, before)
    else:
        store = {}
        exec(answer, store)
        assert store["Store"]("Anna").owner == "Anna"
        assert "owner" not in before
    assert 0.9 < shared(prompt, answer) < 1
    assert 80 < len(prompt.split()) < 300


def test_the_schema_is_one_that_a_grammar_can_follow():
    pytest.importorskip("outlines_core")
    tokenizer = ToyTokenizer([b"", *(bytes([byte]) for byte in range(256))])
    (schema,) = {question.json_schema for question in make(["json"], 0)}
    grammar = json_schema(schema, tokenizer)
    assert grammar.num_states > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_the_records_fill_the_schema_with_words_of_the_prompt(seed):
    jsonschema = pytest.importorskip("jsonschema")
    prompt, answer = json_task(random.Random(seed))
    records = json.loads(answer)
    jsonschema.validate(records, workloads.RECORDS_SCHEMA)
    for record in records:
        told = [record["name"], str(record["age"]), record["town"], record["trade"]]
        assert all(value in prompt for value in told + record["owns"])
        member = "a" if record["member"] else "no"
        assert f"{record['name']} is {member} member" in prompt


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_context_holds_what_is_asked_for(seed):
    prompt, answer = long_context_task(random.Random(seed))
    assert 900 < len(prompt.split()) < 1200
    quoted = answer.split("\n")
    assert len(quoted) == 3
    asked = re.findall(r"\d+", prompt.split("\n")[-1])
    assert [line.split(":")[0] for line in quoted] == [f"Item {number}" for number in asked]
    assert all(prompt.count(line) == 1 for line in quoted)


@pytest.mark.slow
def test_a_long_context_has_as_many_tokens_as_is_said():
    from specjax.io.load import open_checkpoint

    try:
        tokenizer = open_checkpoint("smollm2-135m-instruct").tokenizer()
    except OSError as error:
        pytest.skip(f"the model cannot be had here: {error}")
    for text in text_of("long-context"):
        assert 1500 <= len(tokenizer.encode(text)) <= 2000
