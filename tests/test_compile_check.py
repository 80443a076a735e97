"""Programs compiled for TPUs, without one: what the compiler makes of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from load_script import load_script

from specjax.plan import facts, topology

ROOT = Path(__file__).parent.parent
LIST = ["llama-3.1-70b"] * 4 + ["llama-3.1-8b", "qwen3-30b-a3b"]


def check(*args):
    """Run the script as a user would: jax must not have started for another platform."""
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, ROOT / "tpu_scripts" / "compile_check.py", "--json", "--quiet", *args],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def broken(answer, but="none of them"):
    """The promises not kept, but for one."""
    promises = [p for p in answer["promises"] if not p["name"].startswith(but)]
    return {p["name"]: p["found"] for p in promises if not p["kept"]}


@pytest.fixture
def own_environment(monkeypatch):
    """Settings of a user, and what a script sets is forgotten."""
    for name in topology.ENVIRONMENT:
        monkeypatch.setenv(name, "mine")


def test_two_layers_of_an_8b_keep_every_promise_on_a_v5e():
    status, (answer,) = check("--target", "llama-3.1-8b", "--topology", "v5e:2x2", "--layers", "2")
    # How long it takes depends on what else the machine does.
    assert broken(answer, but="compiled in") == {}
    assert status == bool(broken(answer))
    found = answer["facts"]
    # Weights: 2 embeddings of 128,256 x 4,096, and 2 layers; a fourth of each on a device.
    layer = 4096 * (6144 + 4096 + 3 * 14_336)
    norms = 2 * 4096 * (2 * 2 + 1)
    assert found["weights"] == 2 * (2 * 128_256 * 4096 + 2 * layer) // 4 + norms
    assert found["caches"] == 2 * 2 * (4096 + 6) * 2 * 128 * 2
    assert 0 <= found["whole"]["arguments"] - found["weights"] < 100_000
    assert found["whole"]["exchanges"]["verify"] == {"all-reduce": 2 * 2 + 1}


@pytest.mark.slow
def test_every_listed_setup_keeps_every_promise():
    status, answers = check()
    assert len(answers) == len(LIST)
    assert [broken(answer) for answer in answers] == [{}] * len(LIST)
    assert status == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v7x:2x2", "no chip 'v7x'"),
        ("v5e:4x4x4", "no TPU slice"),
        ("v5e:4", "no TPU slice"),
        ("h200:8", "no TPU slice"),
        ("v5e:axb", "no shape"),
    ],
)
def test_a_topology_that_is_none_is_refused_with_the_forms_there_are(name, message):
    with pytest.raises(ValueError, match=message):
        topology.prepare_environment(name)
    with pytest.raises(ValueError, match="v5e:4x4|v5e:8"):
        topology.devices(name)


def test_without_libtpu_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(topology, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "specjax\[plan\]"'):
        topology.devices("v5e:2x2")


@pytest.mark.usefixtures("own_environment")
def test_what_the_user_has_set_stays():
    topology.prepare_environment("v5e:2x2")
    assert {os.environ[name] for name in topology.ENVIRONMENT} == {"mine"}


def test_the_scripts_list_is_the_one_that_the_slow_test_expects():
    assert [case["target"] for case in load_script("compile_check").LISTED] == LIST


@pytest.mark.usefixtures("own_environment")
def test_an_unknown_target_ends_the_script_with_its_name(capsys):
    assert load_script("compile_check").main(["--target", "gpt-9"]) == 2
    assert "gpt-9" in capsys.readouterr().err


USED = "Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm. Exceeded by 1.75G."
TEMPORARIES = (
    "Ran out of memory on HBM, the total memory required for HLO temporaries (37.46G) exceeds "
    "available HBM (15.75G)."
)


@pytest.mark.parametrize(("text", "required"), [(USED, 17.5), (TEMPORARIES, 37.46 + 1)])
def test_a_program_that_does_not_fit_says_by_how_much(text, required):
    error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
    needed, available = facts._out_of_memory(error, weights=2**30)
    assert (needed / 2**30, available / 2**30) == (pytest.approx(required), 15.75)


def test_another_error_of_the_compiler_is_not_hidden():
    error = jax.errors.JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        facts._out_of_memory(error, weights=0)
