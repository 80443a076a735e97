"""The scripts for accelerators run on a CPU too, with a random model."""

import importlib.util
import json
from pathlib import Path

import pytest
from tiny_folder import write_tiny_folder

SCRIPT = Path(__file__).parents[1] / "tpu_scripts" / "generate.py"
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Once upon a time", "and then?"]},
    {"question_id": 90, "category": "qa", "turns": ["Who?"]},
    {"question_id": 95, "category": "qa", "turns": ["Say aba aba."]},
]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("generate_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_question_is_answered_in_order(script, folder, questions, tmp_path):
    answers = {}
    for batch in (1, 2):
        output = tmp_path / f"{batch}.jsonl"
        common = ["--target", folder, "--max-new-tokens", "6", "--output", str(output)]
        script.main(["--questions", str(questions), "--batch", str(batch), *common])
        answers[batch] = read(output)
    assert [a["question_id"] for a in answers[1]] == [81, 90, 95]
    assert [a["category"] for a in answers[1]] == ["writing", "qa", "qa"]
    assert all(len(a["tokens"]) <= 6 for a in answers[1])
    texts = [[a["text"] for a in answers[batch]] for batch in (1, 2)]
    assert texts[0] == texts[1]  # the last batch of two is padded, and a row needs no neighbours


def test_one_prompt(script, folder, tmp_path, capsys):
    output = tmp_path / "answer.jsonl"
    script.main(
        ["--prompt", "Hi", "--target", folder, "--max-new-tokens", "4", "--output", str(output)]
    )
    (answer,) = read(output)
    assert answer["question_id"] == 0
    assert answer["seed"] == 0
    assert "tokens per pass" in capsys.readouterr().out


def test_its_docstring_opens_with_the_command(script):
    first = script.__doc__.strip().splitlines()[0]
    assert first.startswith("python tpu_scripts/generate.py ")


def test_a_line_that_is_no_question_is_named(script, folder, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question_id": 1}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1: .*turns"):
        script.main(["--questions", str(path), "--target", folder, "--output", str(tmp_path / "o")])
