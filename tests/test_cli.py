"""The command line, in process and with a random model in a folder."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tiny_folder import write_tiny_folder

import specjax
from specjax.bench import Comparison, Costs
from specjax.cli import main
from specjax.cli.comparison import comparison_lines, verdict
from specjax.cli.trace import slots_line

PROMPT = "aba abacus aba"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and a draft model of the same tokenizer."""
    root = tmp_path_factory.mktemp("models")
    return [str(write_tiny_folder(root / name, seed)) for seed, name in enumerate(("big", "small"))]


@pytest.fixture
def run(folders, capsys):
    """Run ``specjax generate PROMPT ...`` and return its status and both outputs."""

    def call(*args, prompt=PROMPT):
        fixed = ["generate", prompt, "--target", folders[0], "--max-new-tokens", "12"]
        status = main([*fixed, *args])
        return status, *capsys.readouterr()

    return call


def chat(text):
    return [{"role": "user", "content": text}]


def test_the_answer_is_that_of_the_library(run, folders):
    status, out, err = run()
    decoder = specjax.Decoder(specjax.load(folders[0]), specjax.drafters.NGram(4))
    expected = decoder.generate(chat(PROMPT), max_new_tokens=12)
    assert expected.texts is not None
    assert (status, out) == (0, expected.texts[0] + "\n")
    last = err.splitlines()[-1]
    assert f"{expected.metrics.mean_acceptance_length:.2f} tokens per pass" in last
    assert "tokens/s" in last


def test_raw_leaves_the_template_out(run, folders):
    _, out, _ = run("--raw")
    expected = specjax.Decoder(specjax.load(folders[0])).generate(PROMPT, max_new_tokens=12)
    assert expected.texts is not None
    assert out == expected.texts[0] + "\n"


@pytest.mark.parametrize("drafter", ["ngram", pytest.param("model", marks=pytest.mark.slow)])
def test_the_stream_is_the_whole_text(run, folders, drafter):
    name = folders[1] if drafter == "model" else drafter
    options = ["--drafter", name, "--temperature", "1", "--seed", "7"]
    _, whole, _ = run(*options)
    status, streamed, _ = run(*options, "--stream")
    assert (status, streamed) == (0, whole)
    assert len(whole) > 4


def test_standard_input(run, monkeypatch):
    _, expected, _ = run()
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    assert run(prompt="-")[:2] == (0, expected)


def test_json_is_one_object_and_nothing_else(run):
    status, out, _ = run("--json", "--seed", "5", "--temperature", "0.7")
    answer = json.loads(out)
    assert status == 0
    assert out.count("\n") == 1
    assert answer.keys() == {*("text", "tokens", "finish_reason", "stopped_by", "seed", "metrics")}
    assert answer["seed"] == 5
    assert answer["metrics"]["num_tokens"] == len(answer["tokens"])
    assert answer["finish_reason"] in ("stop", "length")
    again = json.loads(run("--json", "--seed", "5", "--temperature", "0.7")[1])
    assert again["tokens"] == answer["tokens"]


def test_a_seed_from_entropy_is_told(run):
    first, second = (json.loads(run("--json")[1])["seed"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-k", "x"], "--top-k"),
        (["--max-new-tokens", "-1"], "max_new_tokens"),
        (["--max-new-tokens", "600"], "max_new_tokens=600"),
        (["--draft-length", "0"], "draft_length"),
        (["--draft-length", "2", "--drafter", "none"], "--draft-length"),
        (["--compare", "--drafter", "none"], "--compare"),
        (["--json", "--stream"], "--stream"),
        (["--verifier", "greedy"], "--verifier"),
        (["--drafter", "nothing"], "'nothing'"),
        (["--target", "nothing"], "'nothing'"),
        (["--seed", "-1"], "seed"),
        (["--no-such"], "--no-such"),
    ],
)
def test_a_bad_argument_is_named(run, args, named):
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert named in last
    assert "Traceback" not in err


def test_an_empty_prompt_is_refused(run):
    status, out, err = run(prompt="")
    assert (status, out) == (2, "")
    assert "is empty" in err


@pytest.mark.parametrize("source", ["argument", "standard input"])
def test_bytes_that_are_no_text_are_refused(run, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    status, out, err = run(prompt="-" if source == "standard input" else "a\udcff")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: PROMPT: is not valid UTF-8")


def test_what_cannot_be_read_is_an_error_of_another_kind(run, folders, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    status, out, err = run("--target", str(tmp_path))
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: ")


def test_ctrl_c_leaves_without_a_traceback(run, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("specjax.cli.generate.load", interrupt)
    status, out, err = run()
    assert (status, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_where_the_draws_are_kept_the_tokens_are_equal(run, temperature):
    status, out, _ = run("--temperature", temperature, "--compare", "--json")
    comparison = json.loads(out)["comparison"]
    assert status == 0
    assert comparison["tokens_must_be_equal"]
    assert comparison["tokens_equal"]
    cost = 4 * comparison["draft_cost"] + comparison["pass_cost"]
    assert comparison["predicted_speedup"] == pytest.approx(
        comparison["mean_acceptance_length"] / cost
    )
    fast, slow = (comparison[f"{x}_tokens_per_second"] for x in ("speculative", "plain"))
    assert comparison["ratio"] == pytest.approx(fast / slow)


@pytest.mark.slow
def test_a_ratio_rule_may_make_other_tokens_and_says_why(run, folders):
    args = ["--drafter", folders[1], "--temperature", "1", "--seed", "1", "--compare", "--stream"]
    status, out, _ = run(*args)
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "keeps the target's law, not its draws" in lines["tokens"]
    assert {"plain", "speculative", "acceptance", "draft", "pass", "predicted"} <= lines.keys()


def test_nothing_made_is_nothing_compared(run):
    status, out, _ = run("--compare", "--json", "--max-new-tokens", "0")
    comparison = json.loads(out)["comparison"]
    assert status == 0
    assert comparison["ratio"] is None
    assert "no token" in comparison["verdict"]


def measured(kept, ratio, **changes):
    """A comparison of 10 rounds, ``kept[a]`` of which kept a of 4 draft tokens."""
    outcomes = np.zeros((5, 5), np.int32)
    outcomes[4] = kept
    metrics = specjax.Metrics(sum(kept), 4 * sum(kept), 0, outcomes)
    tokens = [list(range(metrics.num_tokens))]
    result = specjax.Result(
        tokens, None, ["stop"], [None], [[]], [0], [0], metrics, [metrics], True, True
    )
    numbers = {"plain_seconds": ratio, "speculative_seconds": 1.0, "must_agree": True}
    costs = Costs(draft_length=4, draft_cost=0.05, pass_cost=1.3)
    return Comparison(
        **{"plain": result, "speculative": result, "costs": costs, **numbers, **changes}
    )


@pytest.mark.parametrize(
    ("kept", "ratio", "begins"),
    [
        ([0, 0, 9, 1, 0], 2.1, "pays: each pass brings 3.10 "),
        ([9, 1, 0, 0, 0], 0.7, "does not pay: each pass brings 1.10 "),
        ([5, 5, 0, 0, 0], 1.01, "makes no difference: each pass brings 1.50 "),
    ],
)
def test_the_verdict_says_whether_and_why(kept, ratio, begins):
    said = verdict(measured(kept, ratio))
    assert said == begins + "tokens and costs 1.50 plain steps, drafting included"


def test_tokens_that_must_be_equal_and_are_not_are_shouted_about():
    other = measured([0, 0, 9, 1, 0], 2.0).plain
    other.tokens[0][3] = 99
    lines = comparison_lines(measured([0, 0, 9, 1, 0], 2.0, plain=other))
    assert any("DIFFER from number 4 on" in line for line in lines)


@pytest.mark.parametrize(
    "verifier",
    [*(pytest.param(rule, marks=pytest.mark.slow) for rule in ("token", "block")), "coupled"],
)
def test_a_trace_shows_every_round(run, folders, verifier):
    options = ["--verifier", verifier, "--temperature", "1", "--seed", "2", "--trace"]
    status, out, err = run(*options, "--drafter", "ngram" if verifier == "coupled" else folders[1])
    lines, last = out.splitlines(), err.splitlines()[-1]
    num_tokens = int(last.split()[0])
    assert status == 0
    assert max(map(len, lines)) <= 100
    num_rounds = sum(line.startswith("round ") for line in lines)
    assert f"{num_tokens / num_rounds:.2f} tokens per pass" in last
    judged = [line.split("  ")[-1].strip() for line in lines if line.startswith("  ")]
    kept = sum(int(line.split()[2]) for line in lines if line.startswith("round "))
    assert judged.count("accepted") == kept
    assert judged.count("rejected") >= 1
    assert ("target's draw  verdict" in out) == (verifier == "coupled")
    assert (" h    coin  verdict" in out) == (verifier == "block")
    # The cache keeps one slot for every token, in order and without a gap.
    spans = [line.split()[3].rstrip(",").split("..") for line in lines if "slots kept" in line]
    slots = [slot for first, end in spans for slot in range(int(first), int(end) + 1)]
    assert slots == list(range(slots[0], slots[0] + num_tokens))


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_trace_ends_with_the_answer(run, temperature):
    options = ["--temperature", temperature, "--seed", "3"]
    answer = run(*options)[1]
    assert run(*options, "--trace")[1].endswith("\n\n" + answer)


def test_slots_of_a_round():
    # 10 tokens: the newest is fed to slot 9, four drafts after it; two drafts and a token stay.
    assert slots_line(10, 3, 4) == "  cache slots kept 9..11, rewound 12..13"
    assert slots_line(10, 5, 4) == "  cache slots kept 9..13, rewound none"
    assert slots_line(10, 0, 4) == "  cache slots kept none, rewound 9..13"


def test_help_from_a_shell():
    program = "import sys; from specjax.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--draft-length" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_the_default_model_quotes_several_tokens_a_pass(capsys):
    text = (
        "The keeper climbs the stairs and lights the lamp, so that the ships find their way home."
    )
    prompt = f"Repeat this passage word for word:\n\n{text}"
    assert main(["generate", prompt, "--compare", "--json", "--max-new-tokens", "32"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "lights the lamp" in answer["text"]
    assert answer["comparison"]["tokens_equal"]
    assert answer["comparison"]["mean_acceptance_length"] > 2
