"""``specjax check``: a sound pair passes every check, and a fault fails the one that names it."""

import json
import math

import broken_drafters as broken
import jax
import numpy as np
import pytest
from tiny_folder import write_tiny_folder

from specjax.check import Finding, Report, check_pair
from specjax.check.acceptance import deviation_p
from specjax.check.law import Cells
from specjax.check.pair import CHECKS
from specjax.cli import main
from specjax.cli.check import report_lines
from specjax.drafters import DraftModel, NGram, Plain
from specjax.testing import TableLM, tiny_lm
from specjax.verify import Token

V = 5
TARGET = TableLM.random(jax.random.key(0), V)
DRAFT = TableLM.random(jax.random.key(1), V)
DRAFTER_CASES = [
    (broken.ARGMAX, "acceptance"),
    (broken.OTHER_LAW, "acceptance"),
    (broken.DROPS, "acceptance"),
    (broken.REWINDS, "drafter_cache"),
    (broken.MISSES, "drafter_cache"),
]
RULE_CASES = [(broken.RESAMPLES, "law"), (broken.KEEPS_TAIL, "greedy_identity")]


def report(fault=0, rule=0, **settings):
    """All checks of a draft model and a token rule, one of them with a fault."""
    drafter = broken.broken(DRAFT, fault)
    settings = {"num_tokens": 96, "keys": 2048} | settings
    return check_pair(TARGET, drafter, verifier=broken.broken_rule(rule), **settings)


@pytest.fixture(scope="module")
def sound():
    return report()


def test_a_sound_pair_passes_every_check(sound):
    assert [check.name for check in sound.checks] == list(CHECKS)
    assert {check.name: check.passed for check in sound.checks} == dict.fromkeys(CHECKS, True)


@pytest.mark.parametrize(
    ("fault", "named"), DRAFTER_CASES, ids=[broken.DRAFTER_FAULTS[f] for f, _ in DRAFTER_CASES]
)
def test_a_fault_of_the_drafter_is_named(fault, named):
    found = report(fault)
    assert named in found.failed
    assert len(found[named].meaning) > 40
    # What is no fault of the drafter's is not held against it.
    assert {"self_acceptance", "coupled_identity", "target_cache"}.isdisjoint(found.failed)


@pytest.mark.parametrize("fault", [broken.REWINDS, broken.MISSES])
def test_a_drifting_cache_is_slow_but_exact(fault):
    assert report(fault).failed == ("drafter_cache",)


@pytest.mark.parametrize(
    ("fault", "named"), RULE_CASES, ids=[broken.RULE_FAULTS[f] for f, _ in RULE_CASES]
)
def test_a_fault_of_the_rule_is_named(fault, named):
    found = report(rule=fault)
    assert named in found.failed
    # The shipped rules judge the same drafter beside it, and nothing is said against that.
    assert {"acceptance", "drafter_cache", "self_acceptance"}.isdisjoint(found.failed)


def test_the_figures_are_there(sound):
    acceptance, law = sound["acceptance"].figures, sound["law"].figures
    assert acceptance["judged"][0] > acceptance["judged"][1] > 50
    np.testing.assert_allclose(acceptance["measured"], acceptance["expected"], atol=0.1)
    assert len(acceptance["accepted_per_round_along_output"]) == 4
    assert law["keys"] == 2048
    np.testing.assert_allclose(law["measured"], law["expected"], atol=0.05)
    assert set(law["p"]) == {"draft_length_1", "draft_length_2"}
    assert sound["self_acceptance"].figures["rate"] == {"token": 1.0, "block": 1.0}


def test_only_some_checks_run():
    assert [c.name for c in report(only=["law"]).checks] == ["law"]


def test_a_rule_that_calls_itself_lossy_is_not_tested_for_the_law():
    lossy = Token(exact=False)
    found = check_pair(TARGET, NGram(2), verifier=lossy, only=["law"])
    assert found["law"].passed is None
    assert found.passed


def test_a_report_is_json_and_text():
    figures = {"rate": {"token": 1.0}, "p": [math.nan, 0.5]}
    failed = Finding("law", False, figures, "biased at draft_length_1")
    found = Report((Finding("acceptance", None, {}, "nothing drafted"), failed))
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert answer["failed"] == ["law"]
    assert answer["checks"][1]["figures"] == {"rate": {"token": 1.0}, "p": [None, 0.5]}
    lines = report_lines(found)
    assert lines[0].split() == ["skipped", "acceptance"]
    assert lines[2] == "FAILED   law         rate token 1; p - 0.5"
    assert "biased at draft_length_1" in lines[3]
    assert lines[-1] == "FAILED: law; skipped: acceptance"


def test_a_deviation_is_bounded_whatever_the_chances_are():
    """The bound holds: of sound runs with a few rare events, as few fail as it says."""
    draw = np.random.default_rng(0)
    chances = draw.uniform(size=(5000, 30)) ** 6
    hits = draw.uniform(size=chances.shape) < chances
    p = np.array([deviation_p(*row) for row in zip(hits, chances, strict=True)])
    for size in (0.2, 0.05, 0.01):
        assert (p < size).mean() <= size
    assert deviation_p(np.zeros(0), np.zeros(0)) == 1
    assert deviation_p(np.ones(400), np.full(400, 0.7)) < 1e-6


def test_cells_hold_every_pair_once():
    law = np.array([[0.3, 0.2, 0.1], [0.1, 0.1, 0.0]])
    cells = Cells(np.array([4, 2]), np.array([[0, 1], [3, 4]]), law, rest=0.2)
    pairs = np.array([[4, 1], [4, 1], [4, 3], [2, 3], [2, 0], [0, 3]])
    assert cells.counts(pairs).tolist() == [0, 2, 1, 1, 0, 1, 1]
    assert cells.flat_law().sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": 0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"tolerance": 0}, "tolerance"),
        ({"keys": 0}, "keys"),
        ({"num_tokens": 1}, "num_tokens"),
        ({"only": ["laws"]}, "only: there is no check 'laws'"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"prompts": [[99]]}, "99"),
    ],
)
def test_a_bad_argument_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        check_pair(TARGET, NGram(2), **settings)


def test_a_pair_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match="nothing to check"):
        check_pair(TARGET, Plain(), only=["law"])
    with pytest.raises(ValueError, match="num_tokens=600"):
        check_pair(TableLM(TARGET.table, max_length=512), NGram(2), num_tokens=600)


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_folder(tmp_path_factory.mktemp("models") / "target"))


@pytest.fixture
def run(folder, capsys):
    """Run ``specjax check ...`` and return its status and both outputs."""

    def call(*args):
        status = main(["check", "--target", folder, "--draft-length", "2", *args])
        return status, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_a_sound_pair_is_reported_as_json(run):
    """Here under a verifier of one's own."""
    args = ["--verifier", "broken_drafters:sound_rule", "--keys", "60"]
    status, out, err = run("--json", "--only", "law", "--only", "acceptance", *args)
    answer = json.loads(out)
    assert (status, answer["passed"]) == (0, True)
    assert out.count("\n") == 1
    assert [check["name"] for check in answer["checks"]] == ["acceptance", "law"]
    figures = answer["checks"][1]["figures"]
    assert (figures["keys"], figures["verifier"]) == (60, "brokenrule")
    assert "running" in err


@pytest.mark.slow
def test_an_imported_drafter_that_drifts_is_named(folder, capsys):
    args = ["--drafter", "broken_drafters:drifting", "--only", "drafter_cache"]
    status = main(["check", "--target", folder, *args, "--prompt", "aba abacus aba"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert lines[0].startswith("FAILED   drafter_cache  drafts ")
    assert "drifts" in lines[1]
    assert lines[-1] == "FAILED: drafter_cache"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--drafter", "none"], "--drafter"),
        (["--drafter", "nothing"], "'nothing'"),
        (["--drafter", "no_such_module:thing"], "--drafter: cannot import no_such_module:thing"),
        (["--drafter", "broken_drafters:thing"], "--drafter: cannot import"),
        (["--drafter", "broken_drafters:drifting"], "--draft-length"),
        (["--verifier", "no_such_module:thing"], "--verifier: cannot import"),
        (["--verifier", "fast"], "verifier: unknown 'fast'"),
        (["--keys", "0"], "keys"),
        (["--keys", "x"], "--keys"),
        (["--temperature", "0"], "temperature"),
        (["--only", "all"], "only: there is no check 'all'"),
        (["--prompt", ""], "is empty"),
    ],
)
def test_a_bad_argument_of_the_command_is_named(run, args, named):
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert named in err.splitlines()[-1]
    assert "Traceback" not in err


# What takes longer.


@pytest.mark.slow
def test_a_drifting_cache_shows_in_acceptance_along_the_output():
    target = tiny_lm(jax.random.key(2), max_length=2048)
    settings = {"num_tokens": 400, "only": ["acceptance"], "verifier": "token"}
    steady = check_pair(target, DraftModel(target, 2), **settings)
    drifting = check_pair(target, broken.drifting(target), **settings)
    name = "accepted_per_round_along_output"
    assert min(steady["acceptance"].figures[name]) > 1.98
    assert max(drifting["acceptance"].figures[name]) < 1.9


@pytest.mark.slow
def test_the_default_pair_passes(capsys):
    assert main(["check", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == []
    assert all(check["passed"] for check in answer["checks"])
    acceptance = answer["checks"][CHECKS.index("acceptance")]["figures"]
    assert acceptance["judged"][0] > 20
