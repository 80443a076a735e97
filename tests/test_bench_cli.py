"""``specjax bench``, in process and with a random model in a folder."""

import json
import sys

import pytest
from tiny_folder import write_tiny_folder

import specjax
from specjax.bench import measured as bench
from specjax.bench.machine import MachineSpeed
from specjax.bench.plots import shares_by_kind, shares_by_position
from specjax.bench.records import Record, jsonable, summarize
from specjax.cli import bench as command
from specjax.cli import main

QUESTIONS = [
    {"question_id": 1, "category": "chat", "turns": ["aba abacus aba", "again"]},
    {"question_id": 2, "category": "chat", "turns": ["hello hello hello"]},
    {"question_id": 3, "category": "qa", "turns": ["one two three one two"]},
]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    write_tiny_folder(root / "model")
    lines = "\n".join(map(json.dumps, QUESTIONS))
    (root / "questions.jsonl").write_text(lines)
    return root


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Run ``specjax bench QUESTIONS ...`` and return its status and both outputs."""
    monkeypatch.setattr(bench, "measure_machine", lambda *_, **__: MachineSpeed(2e10, 1e11))
    fixed = ["--target", str(folder / "model"), "--repeats", "2"]

    def call(*args, prompts=True):
        asked = [str(folder / "questions.jsonl")] if prompts else []
        status = main(["bench", *asked, *fixed, *args])
        return status, *capsys.readouterr()

    return call


class Parrot:
    name = "parrot"

    def generate(self, prompt, num, draft_length):
        return [97] * num


@pytest.fixture(scope="module")
def whole(folder):
    """What a run with a peer, two temperatures and two batches has written."""
    path = folder / "found.json"
    sizes = ["--max-new-tokens", "10", "--repeats", "2", "--quiet"]
    lists = ["--temperature", "0", "1", "--batch", "1", "2", "--peer", "transformers"]
    outputs = ["--json", str(path), "--png", str(folder / "pictures")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "measure_machine", lambda *_, **__: MachineSpeed(2e10, 1e11))
        patch.setattr(command, "load_peer", lambda *_, **__: Parrot())
        asked = [str(folder / "questions.jsonl"), "--target", str(folder / "model")]
        assert main(["bench", *asked, *sizes, *lists, *outputs]) == 0
    return json.loads(path.read_text())


def test_every_record_is_there_and_summaries_follow_from_them(whole):
    records = [Record.from_dict(one) for one in whole["records"]]
    # At T = 0 four turns one by one for two decoders and two forms of the peer; no peer at T = 1.
    # Two rows at a time are three groups, whatever the temperature.
    assert len(records) == (4 * 4 + 4 * 2) + 2 * 3 * 2
    assert jsonable(summarize(records)) == whole["summaries"]
    assert all(len(record.seconds) == 2 for record in records)
    assert {record.contestant for record in records} == {
        *("plain", "ngram, K = 4", "parrot", "parrot, lookup, K = 4")
    }
    assert {one["name"] for one in whole["contestants"]} == {r.contestant for r in records}


def test_answers_are_those_of_the_library_and_equal(whole, folder):
    plain = specjax.Decoder(specjax.load(folder / "model"))
    records = [Record.from_dict(one) for one in whole["records"]]
    ours = [r for r in records if "parrot" not in r.contestant]
    assert all(answer.must_agree for record in ours for answer in record.answers)
    assert all(answer.differs_at is None for record in ours for answer in record.answers)
    for record in ours:
        for answer in record.answers:
            if answer.question == "3":
                asked = [{"role": "user", "content": QUESTIONS[2]["turns"][0]}]
                settings = {"temperature": record.temperature, "seed": 2, "max_new_tokens": 10}
                assert answer.tokens == plain.generate(asked, **settings).tokens[0]
    peer = next(r for r in records if r.contestant == "parrot").answers[0]
    assert peer.tokens == [97] * len(records[0].answers[0].tokens)
    assert peer.differs_at is not None


def test_what_it_was_measured_with_is_kept(whole, folder):
    assert whole["environment"].keys() >= {
        *("specjax", "jax", "jaxlib", "numpy", "python", "device_kind", "num_devices"),
        *("num_cores", "argv", "commit", "date"),
    }
    assert whole["settings"]["temperature"] == [0, 1]
    assert whole["settings"]["target"] == str(folder / "model")
    assert whole["settings"]["seed"] == 0
    assert whole["ridge"] == 5


def test_model_and_measurement_stand_side_by_side(whole):
    (costs,) = whole["costs"]
    greedy, hot = whole["models"]
    assert (greedy["temperature"], hot["temperature"]) == (0, 1)
    cost = 4 * costs["draft_cost"] + costs["pass_costs"][0]
    assert greedy["predicted"] == pytest.approx(greedy["acceptance_length"] / cost)
    found = [s for s in whole["summaries"] if s["contestant"] == "ngram, K = 4"]
    assert greedy["achieved_call"] == pytest.approx(found[0]["speedup"])
    assert greedy["acceptance_length"] == pytest.approx(found[0]["tokens_per_pass"])


def test_every_picture_is_a_png(whole, folder):
    pictures = {path.name: path.read_bytes()[:8] for path in (folder / "pictures").iterdir()}
    names = "speedup-by-category tokens-per-pass-by-category acceptance-by-draft-position "
    names += "drafted-by-output-position drafted-by-kind speed-by-batch speed-by-temperature"
    assert pictures == {f"{name}.png": PNG for name in names.split()}


def test_shares_of_tokens_from_drafts(whole):
    records = [Record.from_dict(one) for one in whole["records"]]
    answers = [r.answers[0] for r in records if r.contestant == "ngram, K = 4" and r.batch == 1]
    drafted = [flag for answer in answers for flag in answer.drafted]
    assert shares_by_position(answers) == [sum(drafted) / len(drafted)]  # ten tokens are one bin
    kinds = [count for answer in answers for count in answer.kinds.values()]
    assert sum(num for num, _ in kinds) == sum(drafted)
    assert sum(num for _, num in kinds) == len(drafted)
    assert len(shares_by_kind(answers)) == 7


def test_tables_and_progress(run):
    status, out, err = run("--max-new-tokens", "6", "--per-category", "1", "--categories", "qa")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["qa"] in lines
    assert ["chat"] not in lines
    plain = next(line for line in lines if line[:1] == ["plain"])
    assert plain[1] == "1"
    assert plain[3] == "1.00"
    assert "ngram, K = 4" in out
    assert "of the bandwidth" in out
    assert "measuring" in err


@pytest.mark.slow
def test_adaptive_drafts_and_workloads(run, tmp_path):
    path = tmp_path / "found.json"
    args = ["--workload", "classification", "--per-category", "1", "--adaptive", "--quiet"]
    status, _, err = run(*args, "--json", str(path), prompts=False)
    assert status == 0
    assert "it/s" not in err
    found = json.loads(path.read_text())
    assert [one["name"] for one in found["contestants"]][1:] == [
        *("ngram, K = 4", "ngram, K = 4, adaptive"),
    ]
    assert {record["category"] for record in found["records"]} == {"classification"}
    assert [one["nodes"] for one in found["costs"]] == [[4], [0, 2, 4]]


def test_without_matplotlib_the_error_says_what_to_install(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, out, err = run("--png", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith('error: --png: needs matplotlib: pip install "specjax[bench]"')


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--repeats", "0"], "--repeats: must be at least 1, got 0"),
        (["--threads", "0"], "--threads: must be at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens: must be at least 1"),
        (["--batch", "1", "0"], "--batch: must be at least 1, got 0"),
        (["--batch", "2", "2"], "--batch: 2 is given twice"),
        (["--temperature", "0", "-1"], "--temperature: must be at least 0, got -1"),
        (["--temperature", "nan"], "--temperature: must be at least 0"),
        (["--temperature", "warm"], "--temperature"),
        (["--draft-length", "0"], "--draft-length: must be at least 1"),
        (["--seed", "-1"], "--seed: must be at least 0"),
        (["--drafter", "ngram", "--drafter", "ngram"], "--drafter: ngram is given twice"),
        (["--drafter", "nothing"], "--drafter: is none, ngram"),
        (["--drafter", "none", "--adaptive"], "--adaptive: there are no drafts"),
        (["--verifier", "greedy"], "--verifier"),
        (["--peer", "mine"], "--peer"),
        (["--workload", "chess"], "'chess'"),
        (["--categories", "chess"], "'chess'"),
        (["--per-category", "0"], "per_category"),
        (["--max-new-tokens", "600"], "questions: 1, turn 1: prompts: row 0"),
    ],
)
def test_bad_arguments_are_one_line(run, args, named):
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert named in last
    assert "Traceback" not in err


def test_something_has_to_be_asked(run):
    status, _, err = run(prompts=False)
    assert status == 2
    assert err.startswith("error: PROMPTS: name a .jsonl file, or a --workload")


def test_what_cannot_be_read_or_written_is_said_before_anything_runs(run, tmp_path):
    assert run(str(tmp_path / "none.jsonl"), prompts=False)[0] == 1
    status, out, err = run("--json", str(tmp_path / "no" / "found.json"))
    assert (status, out) == (1, "")
    assert "loading" not in err
