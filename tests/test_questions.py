"""Files of questions: what is read from them, what is refused and why, and what is chosen."""

import json
from pathlib import Path

import pytest

from specjax.bench.questions import Question, choose, read_questions

FIRST = {"question_id": 7, "category": "writing", "turns": ["Write.", "Again."]}
SECOND = {"question_id": "b-1", "category": "qa", "turns": ["Who?"]}


def written(folder, *lines):
    path = folder / "file.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts))
    return path


def test_reads_what_a_line_says_and_skips_the_rest(tmp_path):
    separator = json.dumps(SECOND | {"turns": ["one\u2028two"]}, ensure_ascii=False).encode()
    path = written(tmp_path, FIRST | {"reference": [1]}, b"", b"  \r", separator)
    assert read_questions(path) == [
        Question("7", "writing", ("Write.", "Again.")),
        Question("b-1", "qa", ("one\u2028two",)),
    ]
    assert read_questions(str(path)) == read_questions(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question_id": 1', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'"\xff"', "is not UTF-8"),
        ([FIRST], "must be an object with question_id, category and turns, got list"),
        ({"question_id": 1, "turns": ["a"]}, "has no category"),
        ({"category": "a", "turns": ["a"]}, "has no question_id"),
        ({"question_id": 1, "category": "a"}, "has no turns"),
        (SECOND | {"question_id": True}, "question_id must be an integer or a string, got a bool"),
        (SECOND | {"question_id": None}, "question_id must be .* got a NoneType"),
        (SECOND | {"category": 3}, "category must be a nonempty string, got a int"),
        (SECOND | {"category": ""}, "category must be a nonempty string, got an empty str"),
        (SECOND | {"turns": "Who?"}, "turns must be a list of at least one string, got a str"),
        (SECOND | {"turns": []}, "turns must be a list of at least one string, got an empty list"),
        (SECOND | {"turns": ["a", " "]}, r"turns\[1\] must be a nonempty string"),
        (SECOND | {"turns": [{"role": "user"}]}, r"turns\[0\] must be .* got a dict"),
        (SECOND | {"question_id": "7"}, "question_id '7' is that of line 1, too"),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line(tmp_path, line, message):
    path = written(tmp_path, FIRST, b"", line)
    with pytest.raises(ValueError, match=rf"^questions: {path} line 3: {message}"):
        read_questions(path)


def test_a_file_without_questions_is_refused_and_a_missing_one_is_an_os_error(tmp_path):
    with pytest.raises(ValueError, match=r"^questions: .*file.jsonl holds no question"):
        read_questions(written(tmp_path, b"", b" "))
    with pytest.raises(FileNotFoundError):
        read_questions(Path(tmp_path) / "no.jsonl")


QUESTIONS = [Question(str(i), category, ("a",)) for i, category in enumerate("xyxyxz")]


def ids(*arguments):
    return "".join(question.id for question in choose(QUESTIONS, *arguments))


def test_choose_keeps_categories_and_the_first_of_each():
    assert ids() == "012345"
    assert ids(["x"]) == "024"
    assert ids(["z", "x"]) == "0245"
    assert ids(None, 2) == "01235"
    assert ids(["x", "z"], 1) == "05"


def test_choose_refuses_what_it_cannot_choose():
    with pytest.raises(ValueError, match=r"^categories: no question is of 'w'.*\['x', 'y', 'z'\]"):
        choose(QUESTIONS, ["x", "w"])
    with pytest.raises(ValueError, match="^per_category: must be positive, got 0"):
        choose(QUESTIONS, None, 0)
