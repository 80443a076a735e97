"""Times that a plan predicts from what was measured in the same run."""

import os
import re
import subprocess
import sys

import pytest

from specjax.bench import plan_accuracy
from specjax.bench.plan_accuracy import Row, machines_of


def test_a_prediction_says_how_far_it_is_off():
    assert str(Row("a pass", 0.11, 0.1)).endswith("+10.0%   within 15%")
    assert str(Row("a pass", 0.08, 0.1)).endswith("-20.0%   NOT within 15%")


def test_a_machine_is_what_its_products_reach(capsys):
    # A thousand weights take 4 microseconds by one row: 1 GB/s; 5 by six: 2.4 GFLOP/s.
    machines = machines_of({1: 4e-6, 6: 5e-6}, 1000)
    assert "bandwidth 1.0 GB/s" in capsys.readouterr().out
    assert machines[6].chip.bandwidth == pytest.approx(1e9)
    assert machines[6].chip.peak("float32") == pytest.approx(2.4e9)


def test_the_status_says_whether_all_are_within(monkeypatch):
    near, far = Row("near", 1.0, 1.1), Row("far", 1.0, 1.3)
    for rows, status in [([near], 0), ([near, far], 1)]:
        monkeypatch.setattr(plan_accuracy, "measure", lambda *_, rows=rows, **__: rows)
        assert plan_accuracy.main([]) == status


@pytest.mark.slow
def test_predicted_times_are_of_the_measured_size():
    # As users run it: here the CPU counts as eight devices. Machines that others use too: half to
    # twice is what always holds.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-m", "specjax.bench.plan_accuracy", "--repeats", "3"]
    found = subprocess.run(
        command, capture_output=True, text=True, env={**environment, "JAX_PLATFORMS": "cpu"}
    )
    rows = re.findall(r"predicted +([\d.]+) ms +measured +([\d.]+) ms", found.stdout)
    assert len(rows) == 3, found.stderr
    assert all(0.5 < float(one) / float(other) < 2 for one, other in rows), found.stdout
