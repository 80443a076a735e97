"""``specjax plan``, in process: what it prints, and what it refuses."""

import json
import sys

import jsonschema
import pytest
from test_plan_report import compiled as compiled_plan

from specjax.cli import main
from specjax.cli import plan as command
from specjax.plan import topology
from specjax.plan.public import PUBLIC

NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
PASS = {
    "type": "object",
    "required": ["bytes", "operations", "intensity", "bound", "seconds", "cache", "exchanges"],
    "properties": {"bound": {"enum": ["memory", "arithmetic", "exchanges"]}},
}
GAIN = {
    "type": "object",
    "required": ["acceptance_rate", "ceiling", "best_draft_length", "stops_paying_at_batch"],
    "properties": {"speedups": {"type": "array", "minItems": 10, "maxItems": 10}},
}
SCHEMA = {
    "type": "object",
    "required": ["fits", "basis", "setup", "chip", "memory", "largest_batch", "passes", "speedup"],
    "properties": {
        "fits": {"type": "boolean"},
        "basis": {"enum": ["compiled", "estimated"]},
        "memory": {"type": "object", "required": ["weights", "cache", "required", "available"]},
        "largest_batch": {**NUMBERS, "required": ["speculative", "plain"]},
        "passes": {
            "type": "object",
            "additionalProperties": PASS,
            "required": ["plain step", "draft step", "verification", "prefill"],
        },
        "time_to_first_token": {"type": "number", "exclusiveMinimum": 0},
        "speedup": {"type": "array", "items": GAIN, "minItems": 5},
    },
}
SMALL = ("--target", "smollm2-360m", "--topology", "h200:1", "--context", "512")


@pytest.fixture
def run(capsys):
    """Run ``specjax plan ...`` and return its status and both outputs."""

    def call(*args):
        return main(["plan", *args]), *capsys.readouterr()

    return call


def test_seventy_billion_weights_fit_sixteen_chips_and_not_four(run):
    args = ("--target", "llama-3.1-70b", "--drafter", "llama-3.2-1b", "--no-compile")
    status, out, err = run(*args, "--topology", "v5e:4x4")
    assert (status, err) == (0, "")
    assert "fits, with" in out
    status, out, _ = run(*args, "--topology", "v5e:2x2")
    assert status == 1
    assert "does NOT fit" in out


def test_json_is_one_object_of_the_documented_shape(run):
    status, out, _ = run(*SMALL, "--drafter", "smollm2-135m", "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert (status, found["fits"], found["basis"]) == (0, True, "estimated")
    assert found["setup"]["draft_length"] == 5


def test_arguments_reach_the_plan(run):
    args = ("--draft-length", "3", "--batch", "4", "--dtype", "float32", "--prompt", "100")
    mesh = ("--topology", "h200:4", "--mesh", "2x2")
    _, out, _ = run(*SMALL, *args, *mesh, "--json")
    setup = json.loads(out)["setup"]
    assert (setup["draft_length"], setup["batch"], setup["prompt"]) == (3, 4, 100)
    assert (setup["dtype"], setup["mesh"], setup["drafter"]) == ("float32", [2, 2], None)
    assert setup["topology"] == "h200:4"


def test_a_config_json_and_its_folder_are_targets(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLIC["smollm2-135m"]))
    for path in (tmp_path, tmp_path / "config.json"):
        status, out, _ = run("--target", str(path), "--topology", "h200:1", "--drafter", "none")
        assert status == 0
        assert "30 layers of 576" in out
        assert "drafter  none" in out


def test_a_picture_is_a_png(run, tmp_path):
    path = tmp_path / "plan.png"
    status, _, err = run(*SMALL, "--png", str(path))
    assert (status, err) == (0, f"wrote {path}\n")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_tpus_compiler_is_asked_unless_told_not_to(run, monkeypatch):
    asked = []

    def compile_setup(setup, *, streamed):
        asked.append(setup.topology)
        return compiled_plan(setup, required=17.5e9, whole=None).compiled

    monkeypatch.setattr(command, "prepare_environment", lambda _: None)
    monkeypatch.setattr(command, "compile_setup", compile_setup)
    status, out, err = run(*SMALL, "--topology", "v5e:2x2")
    assert status == 1
    assert "does NOT fit: 0.589 GB too much" in out
    assert "compiling for v5e:2x2" in err
    run(*SMALL)
    run(*SMALL, "--topology", "v5e:2x2", "--no-compile")
    assert asked == ["v5e:2x2"]


def test_without_libtpu_the_error_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(topology, "find_spec", lambda _: None)
    status, _, err = run(*SMALL, "--topology", "v5e:2x2")
    assert status == 2
    assert 'pip install "specjax[plan]", or give --no-compile' in err


def test_without_matplotlib_the_error_says_what_to_install(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = run(*SMALL, "--png", str(tmp_path / "plan.png"))
    assert status == 2
    assert 'pip install "specjax[plan]"' in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "llama-9"), "'llama-9' is neither a known model nor a config.json"),
        (("--drafter", "llama-3.2-1b"), "drafter: has 128256 tokens, the target 49152"),
        (("--drafter", "none", "--draft-length", "4"), "--draft-length: --drafter none drafts"),
        (("--topology", "v9:2x2"), "topology: there is no chip 'v9'"),
        (("--topology", "v5e:four"), "topology: 'four' is no shape"),
        (("--topology", "v5e:2x2x2"), "is no TPU slice to compile for"),
        (("--mesh", "2by2"), "--mesh: '2by2' is no mesh; write DATAxMODEL"),
        (("--mesh", "2x2"), "mesh: 2x2 is 4 devices, and there are 1"),
        (("--batch", "0"), "batch: 0 is below 1"),
        (("--context", "9000"), "context: 9000 is beyond the target's 8192"),
    ],
)
def test_bad_arguments_are_one_line(run, args, message):
    status, out, err = run(*SMALL, *args)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_files_that_are_no_configuration_are_named(run, tmp_path):
    path = tmp_path / "config.json"
    for text, message in [("{", "is no JSON"), ("[]", "is no configuration"), ("{}", "none named")]:
        path.write_text(text)
        status, _, err = run("--target", str(path), "--topology", "h200:1")
        assert status == 2
        assert message in err
