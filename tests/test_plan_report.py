"""What a plan says, in text and in JSON."""

import dataclasses
import json

import pytest
from toy_plan import GLOBAL, toy_config, toy_machine, toy_setup

from specjax.models import Experts
from specjax.plan import predict
from specjax.plan.facts import Facts, ProgramFacts
from specjax.plan.memory import memory_of
from specjax.plan.public import find_config
from specjax.plan.report import Plan
from specjax.plan.setup import Setup
from specjax.plan.text import lines

DRAFTER = toy_config(layers=(GLOBAL,))
SPARSE = toy_config(
    layers=(dataclasses.replace(GLOBAL, sparse=True),) * 2,
    experts=Experts(num=8, num_chosen=2, size=16),
)


def compiled(setup, required=900_000.0, **changes):
    """What a compiler might say of a toy."""
    # Whatever else a program's facts come to hold is not for the plan.
    rest = dict.fromkeys((field.name for field in dataclasses.fields(ProgramFacts)), 0)
    exchanges = {"draft": {}, "verify": {"all-reduce": 5}, "accept": {"all-gather": 1}}
    nothing = dict.fromkeys(("gathered", "copied", "host_calls"), ())
    program = ProgramFacts(
        **{**rest, **nothing, "seconds": 1.0, "has_round": True, "exchanges": exchanges}
    )
    facts = Facts(0, 0, required, setup.machine.chip.memory, whole=program)
    return Plan(setup, dataclasses.replace(facts, **changes))


@pytest.mark.parametrize(
    "setup",
    [
        toy_setup(drafter=DRAFTER, topology=toy_machine(2)),
        toy_setup(target=SPARSE),
        toy_setup(draft_length=0),
    ],
    ids=["model", "sparse", "plain"],
)
def test_the_text_has_every_pass_and_every_part_of_memory(setup):
    plan = Plan(setup)
    text = "\n".join(lines(plan))
    for name in plan.passes:
        assert f"\n{name} " in text
    assert ("verification" in plan.passes) == (setup.draft_length > 0)
    assert ("draft step" in plan.passes) == (setup.drafter is not None)
    assert ("experts read:" in text) == (setup.target is SPARSE)
    assert ("exchanges between devices:" in text) == (setup.machine.num_devices > 1)
    for what in ("weights", "cache", "required", "largest batch", "to first token", "ceiling"):
        assert what in text


def test_the_json_is_json_and_holds_what_the_plan_says():
    plan = Plan(toy_setup(drafter=DRAFTER))
    found = json.loads(json.dumps(plan.to_dict(), allow_nan=True))
    assert found["fits"] is plan.fits
    assert found["memory"]["required"] == plan.memory.total
    assert found["passes"]["verification"]["bytes"] == plan.passes["verification"].cost.bytes
    assert [gain["acceptance_rate"] for gain in found["speedup"]] == list(predict.RATES)
    assert all(len(gain["speedups"]) == len(found["draft_lengths"]) for gain in found["speedup"])
    assert found["compiled"] is None


def test_an_estimate_fits_exactly_when_it_is_no_more_than_there_is():
    total = memory_of(toy_setup()).total
    fits = [
        Plan(toy_setup(topology=toy_machine(memory=memory))).fits for memory in (total, total - 1)
    ]
    assert fits == [True, False]


def test_the_compiler_has_the_last_word_on_memory():
    setup = toy_setup(drafter=DRAFTER)
    plan = compiled(setup)
    assert (plan.fits, plan.required) == (True, 900_000)
    assert plan.memory.total == pytest.approx(900_000)
    assert plan.memory.weights == memory_of(setup).weights
    assert "working memory (compiled)" in "\n".join(lines(plan))


def test_what_does_not_fit_says_by_how_much_and_fewer_rows_do():
    setup = toy_setup(batch=8)
    plan = compiled(setup, required=1_250_000.0, whole=None)
    text = "\n".join(lines(plan))
    assert not plan.fits
    assert "does NOT fit: 0.000250 GB too much" in text
    assert plan.memory.total == pytest.approx(1_250_000)
    assert 0 <= plan.largest["speculative"] < 8


def test_exchanges_are_predicted_and_counted():
    plan = compiled(toy_setup(topology=toy_machine(2)))
    assert plan.exchanges["per_layer"] == 2
    text = "\n".join(lines(plan))
    assert "2.0 a layer, 6 a pass" in text
    assert "compiled, verify: 5 all-reduce (2.5 a layer)" in text
    assert "compiled, draft" not in text


def test_a_machine_that_cannot_be_compiled_for_says_so():
    target = find_config("smollm2-135m")
    assert "only for TPUs" in "\n".join(lines(Plan(Setup(target, "h200:1"))))
    assert "predicted, not compiled" in "\n".join(lines(Plan(Setup(target, "v5e:2x2"))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh": (2, 2)}, "mesh: 2x2 is 4 devices, and there are 1"),
        ({"topology": toy_machine(2), "mesh": (2, 1), "batch": 3}, "batch: 3 rows cannot be cut"),
        ({"drafter": toy_config(vocab_size=65)}, "drafter: has 65 tokens, the target 64"),
        ({"drafter": DRAFTER, "draft_length": 0}, "draft_length: a draft model drafts at least 1"),
        ({"draft_length": -1}, "draft_length: -1 is below 0"),
        ({"prompt": 100}, "prompt: 100 tokens leave no room"),
        ({"target": toy_config(max_length=99)}, "context: 100 is beyond the target's 99"),
        ({"dtype": "int4"}, "dtype: 'int4' is none of"),
        ({"placement": "replicated"}, "placement: only a draft model"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        toy_setup(**changes)
