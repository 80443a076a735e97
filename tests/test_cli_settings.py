"""The settings of ``specjax generate`` beyond temperature and its like."""

import json
import re

import pytest
from tiny_folder import write_tiny_folder

import specjax
from specjax.cli import main

PROMPT = "aba abacus aba"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_folder(tmp_path_factory.mktemp("models") / "big"))


@pytest.fixture
def run(folder, capsys):
    def call(*args):
        fixed = ["generate", PROMPT, "--target", folder, "--max-new-tokens", "24", "--raw"]
        status = main([*fixed, *args])
        return status, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_settings_are_those_of_the_library(run, folder):
    args = ["--temperature", "1", "--seed", "3", "--json", "--logprobs", "2"]
    args += [
        "--repetition-penalty",
        "1.5",
        "--presence-penalty",
        "0.5",
        "--stop",
        "b",
        "--stop",
        "7",
    ]
    args += ["--frequency-penalty", "0.1", "--min-new-tokens", "3", "--no-repeat-ngram-size", "3"]
    status, out, _ = run(*args, "--logit-bias", "5=2.5", "--logit-bias", "6=-inf")
    decoder = specjax.Decoder(specjax.load(folder), specjax.drafters.NGram(4))
    expected = decoder.generate(
        PROMPT,
        max_new_tokens=24,
        temperature=1.0,
        seed=3,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.1,
        min_new_tokens=3,
        no_repeat_ngram_size=3,
        stop=["b", "7"],
        logit_bias={5: 2.5, 6: float("-inf")},
        logprobs=2,
    )
    answer = json.loads(out)
    assert status == 0
    assert answer["tokens"] == expected.tokens[0]
    assert answer["text"] == expected.texts[0]
    assert answer["stopped_by"] == expected.stopped_by[0]
    assert answer["logprobs"]["raw"] == pytest.approx(expected.logprobs[0], abs=1e-5)
    assert [len(top) for top in answer["logprobs"]["top"]] == [2] * len(expected.tokens[0])


def test_a_grammar_shapes_the_answer(run, tmp_path):
    _, out, _ = run("--regex", "(yes|no), [0-9]{3}", "--temperature", "1")
    assert re.fullmatch("(yes|no), [0-9]{3}\n", out)
    schema = tmp_path / "schema.json"
    properties = {"ok": {"type": "boolean"}}
    schema.write_text(json.dumps({"type": "object", "properties": properties, "required": ["ok"]}))
    _, out, _ = run("--json-schema", str(schema), "--stream")
    assert json.loads(out)["ok"] in (True, False)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--logit-bias", "5"], "--logit-bias"),
        (["--logit-bias", "9999=1"], "logit_bias: 9999"),
        (["--stop", ""], "stop: "),
        (["--logprobs", "2"], "--logprobs"),
        (["--repetition-penalty", "0"], "repetition_penalty: "),
        (["--regex", "(?=a)b"], "pattern"),
        (["--regex", "a", "--json-schema", "b"], "--json-schema"),
        (["--json-schema", "/no/such/file"], "/no/such/file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_bad_setting_is_one_line_that_names_it(run, args, named):
    status, out, err = run(*args)
    assert (status in (1, 2), out) == (True, "")
    assert named in err.splitlines()[-1]
    assert "Traceback" not in err
