"""tpu_scripts/bench.py runs on virtual devices, and a set acceptance is what it says."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from load_script import load_script
from mesh_cells import FAST
from random_folder import CONFIG

import specjax
from specjax import compiled
from specjax.bench.random_model import random_model
from specjax.bench.synthetic import HeldTo, with_mistakes
from specjax.plan.public import find_config
from specjax.sharding import RULES, Layout
from specjax.types import Sampling


@pytest.fixture(scope="module")
def script():
    return load_script("bench")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(CONFIG | {"num_hidden_layers": 1}))
    return str(path)


SHORT = ["--prompt-length", "6", "--max-new-tokens", "16", "--repeats", "1", "--json"]


@pytest.fixture
def fast(monkeypatch):
    for name, static in (("generate", ("chunk", "keep_state")), ("begin", "chunk")):
        function = getattr(compiled, name).__wrapped__
        sooner = jax.jit(function, static_argnames=static, compiler_options=FAST)
        monkeypatch.setattr(compiled, name, sooner)


@pytest.mark.usefixtures("fast")
def test_a_random_model_on_a_mesh_at_a_set_acceptance(script, config, capsys):
    asked = ["--batch", "2", "--mesh", "2x4", "--synthetic-acceptance", "1", "--draft-length", "3"]
    script.main(["--random", config, "--chip", "v5e", *asked, *SHORT])
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_equal"]
    assert found["tokens_per_pass"] == found["asked_tokens_per_pass"] == 4
    assert found["bandwidth_share"] > 0
    assert found["planned_speedup"] > 1
    said = "\n".join(script.lines(found))
    assert "mesh 2 x 4, 2 rows" in said
    assert "of the chip's memory bandwidth" in said


@pytest.mark.slow
def test_a_draft_model_whole_on_every_device(script, config, capsys):
    asked = ["--drafter", config, "--replicate-drafter", "--mesh", "1x2"]
    script.main(["--random", config, *asked, *SHORT])
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_equal"]
    assert found["draft_cost"] > 0
    assert "planned_speedup" not in found  # a CPU is no chip that plans know


def test_random_weights_lie_where_they_are_to(config):
    layout = Layout(specjax.make_mesh(2, 4), RULES)
    lm = random_model(find_config(config), layout, "float32")
    kernel = lm.weights.layers[0].up.kernel
    assert kernel.sharding.shard_shape(kernel.shape) == (32, 12)
    assert 0.9 < np.asarray(kernel).std() * 32**0.5 < 1.1
    assert (lm.weights.norm.scale == 1).all()


def test_the_kinds_of_devices_that_plans_know(script):
    kinds = ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "TPU v5 lite", "TPU v5", "TPU v6 lite", "cpu"]
    assert list(map(script.chip_of, kinds)) == ["h200", "h100", "v5e", "v5p", "v6e", None]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mesh", "4"], "DATAxMODEL"),
        (["--mesh", "4x1", "--batch", "6"], "cannot be cut 4 ways"),
        (["--prompt", "Hi", "--synthetic-acceptance", "0.5"], "drop --prompt"),
        (["--repeats", "0"], "--repeats: must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(script, argv, message, capsys):
    with pytest.raises(SystemExit):
        script.parse(argv)
    assert message in capsys.readouterr().err


def test_its_docstring_opens_with_the_command(script):
    assert script.__doc__.startswith("python tpu_scripts/bench.py ")


TEXTS = [[row, 1, 2, *(3 + (7 * i * (row + 1)) % 50 for i in range(500))] for row in range(8)]


def test_drafts_are_wrong_as_often_as_asked():
    drafter = with_mistakes(TEXTS, 0.7, draft_length=3, vocab_size=61)
    wrong = np.asarray(drafter.script)[:, :-1] != np.asarray(TEXTS)
    assert abs(wrong.mean() - 0.3) < 0.03
    neighbours = (wrong[:, 1:] & wrong[:, :-1]).mean()
    assert abs(neighbours - 0.09) < 0.02  # whether one is wrong says nothing of the next
    with pytest.raises(ValueError, match="rate: must be from 0 to 1"):
        with_mistakes(TEXTS, 1.5, draft_length=3, vocab_size=61)


def test_a_row_says_its_text_however_unlikely():
    held, row = HeldTo.of(TEXTS), Sampling.of(1)
    h = held.init(jnp.asarray(TEXTS[3], jnp.int32), jnp.int32(4), row)
    path = jnp.asarray([9, 9, 9], jnp.int32)
    for steps in range(3):
        followed = held.follow(h, path, jnp.int32(steps))
        logits = held.apply(jnp.linspace(-50.0, 50.0, 61), followed, row)
        assert int(logits.argmax()) == TEXTS[3][4 + steps]
    assert held.advance(held.advance(h, path[0]), path[1]) == followed
    free = HeldTo.nothing(8, len(TEXTS[0]))
    assert free.texts.shape == held.texts.shape  # the program is the same
    assert int(free.apply(jnp.linspace(-50.0, 50.0, 61), h, row).argmax()) == 60
