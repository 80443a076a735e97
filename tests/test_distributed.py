"""Two processes of four virtual devices in the part of two hosts."""

import json

import numpy as np
import pytest
from host_script import HEARTBEAT
from hosts import ROOT, start_hosts, wait

from specjax import distributed, rng

SCRIPT = ROOT / "tests" / "host_script.py"


@pytest.fixture(scope="module")
def said():
    """What each of two hosts has after sharing."""
    ended = wait(start_hosts([SCRIPT, "share"]))
    assert [status for status, _ in ended] == [0, 0], ended
    return [json.loads(output.splitlines()[-1]) for _, output in ended]


def test_every_host_gets_the_rows_of_all_and_knows_its_own(said):
    for host in said:
        assert host["rows"] == [[], [1], [1] * 4]
    assert [host["mine"] for host in said] == [[0, 1], [1, 3]]
    assert [host["to_read"] for host in said] == [[[0, 1, 2]], [[3, 4, 5, 6]]]


def test_hosts_agree_on_what_the_first_one_has(said):
    assert [host["first"] for host in said] == [[0, 0], [0, 0]]
    assert said[0]["seeds"] == said[1]["seeds"]
    assert len(set(said[0]["seeds"])) == 3


def test_rows_of_each_host_make_one_array_and_come_back(said):
    for host, own in enumerate(([0, 1, 2, 3], [10, 11, 12, 13])):
        assert said[host]["back"]["data"] == [[8], 52.0, own]
        assert said[host]["back"]["model"] == [[8], 28.0, list(range(8))]


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_an_exception_on_one_host_ends_the_other_with_its_reason(victim):
    ended = wait(start_hosts([SCRIPT, "raise", "--victim", victim]))
    assert [status for status, _ in ended] == [1, 1], ended
    reason = f"host {victim} failed: ValueError: prompts: is bad;"
    assert f"host {victim} of 2: {reason}" in ended[victim][1]
    assert "Traceback" in ended[victim][1]
    assert f"host {1 - victim} of 2: ends, because {reason}" in ended[1 - victim][1]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_host_ends_the_other_with_a_message_in_bounded_time(victim):
    ended = wait(start_hosts([SCRIPT, "die", "--victim", victim]), patience=4 * HEARTBEAT + 20)
    assert ended[victim][0] == -9
    status, output = ended[1 - victim]
    assert status not in (0, -9), output  # -9 is what a hanging one would get
    assert "Terminating process because" in output
    named = "leader" if victim == 0 else "stopped sending heartbeats):\n1\n"
    assert named in output


def test_one_process_needs_no_others(tmp_path):
    with distributed.job():
        rows, mine = distributed.share([[1], [2, 3]])
    assert (rows, mine) == ([[1], [2, 3]], slice(0, 2))
    assert distributed.agree_on_seeds([5, 9], 2) == rng.draw_seeds([5, 9], 2) == [5, 9]
    assert distributed.from_first({"a": np.arange(3)})["a"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError), distributed.job():
        raise KeyError("as it is")


@pytest.mark.parametrize(
    "given", [(None, 2, 0), ("localhost:1", 2, None), ("localhost:1", None, 0)]
)
def test_half_an_address_is_refused(given):
    with pytest.raises(ValueError, match="^coordinator: "):
        distributed.initialize(*given)
