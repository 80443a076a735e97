"""The scripts for accelerators run on a CPU too, with a random model."""

import json

import pytest
from load_script import load_script
from tiny_folder import write_tiny_folder

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Once upon a time", "and then?"]},
    {"question_id": 90, "category": "qa", "turns": ["Who?"]},
    {"question_id": 95, "category": "qa", "turns": ["Say aba aba."]},
]


@pytest.fixture(scope="module")
def script():
    return load_script("generate")


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
    for batch, more in ((1, []), (2, ["--mesh", "2x2"])):
        output = tmp_path / f"{batch}.jsonl"
        common = ["--target", folder, "--max-new-tokens", "6", "--output", str(output), *more]
        script.main(["--questions", str(questions), "--batch", str(batch), *common])
        answers[batch] = read(output)
    assert [a["question_id"] for a in answers[1]] == [81, 90, 95]
    assert [a["category"] for a in answers[1]] == ["writing", "qa", "qa"]
    assert all(len(a["tokens"]) <= 6 for a in answers[1])
    texts = [[a["text"] for a in answers[batch]] for batch in (1, 2)]
    # The last batch of two is padded; a row needs no neighbours, nor one device for itself.
    assert texts[0] == texts[1]


def test_one_prompt(script, folder, tmp_path, capsys):
    output = tmp_path / "answer.jsonl"
    script.main(
        ["--prompt", "Hi", "--target", folder, "--max-new-tokens", "4", "--output", str(output)]
    )
    (answer,) = read(output)
    assert answer["question_id"] == 0
    assert answer["seed"] == 0
    printed = capsys.readouterr()
    assert "tokens per pass" in printed.out
    assert "1/1" in printed.err  # the progress bar, out of the way of pipes


def test_its_docstring_opens_with_the_command(script):
    first = script.__doc__.strip().splitlines()[0]
    assert first.startswith("python tpu_scripts/generate.py ")


def test_a_line_that_is_no_question_is_named(script, folder, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question_id": 1}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1: .*turns"):
        script.main(["--questions", str(path), "--target", folder, "--output", str(tmp_path / "o")])


@pytest.mark.parametrize("mesh", ["4", "2x", "axb"])
def test_a_mesh_needs_two_numbers(script, mesh, capsys):
    with pytest.raises(SystemExit):
        script.parse(["--prompt", "Hi", "--output", "o", "--mesh", mesh])
    assert "argument --mesh: must be DATAxMODEL" in capsys.readouterr().err
