"""A file of prompts becomes a file of answers, whatever is killed on the way."""

import fcntl
import json
import random
import time

import pytest
from hosts import start, start_hosts, wait
from load_script import FOLDER, load_script
from tiny_folder import write_tiny_folder

from specjax.io.resumable import whole_lines

SCRIPT = FOLDER / "batch_generate.py"
SEED = 5
SMALL = ("--batch", 4, "--draft-length", 2, "--max-new-tokens", 24, "--seed", SEED, "--mesh", "2x1")
LARGE = ("--batch", 8, "--draft-length", 3, "--max-new-tokens", 32, "--mesh", "4x2")
TOO_LONG = 7
"""The line whose prompt does not fit the model."""


@pytest.fixture(scope="module")
def script():
    return load_script("batch_generate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def write_prompts(path, num):
    """Every kind of line, and one prompt longer than the model allows."""
    lines = [
        {"question_id": i, "category": "qa", "turns": [f"Say {'ab' * (i % 9)}."]}
        if i % 3 == 0
        else {"prompt": f"{i} and {i}" if i % 3 == 1 else [1 + i, 7, 7, 7], "id": f"p{i}"}
        for i in range(num)
    ]
    lines[TOO_LONG]["prompt"] = "x" * 600
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_prompts(path, 14)
    return path


@pytest.fixture
def run(script, folder, prompts):
    """Run the script here, and read what it has written."""

    def go(output, *more):
        files = ("--input", prompts, "--output", output, "--target", folder)
        script.main([str(x) for x in (*files, *SMALL, *more)])
        return output.read_bytes()

    return go


@pytest.fixture(scope="module")
def whole(script, folder, prompts, tmp_path_factory):
    """The output of a run that nothing interrupts."""
    output = tmp_path_factory.mktemp("whole") / "answers.jsonl"
    files = ("--input", prompts, "--output", output, "--target", folder)
    script.main([str(x) for x in (*files, *SMALL)])
    return output


def copy(whole, to, num_bytes=None):
    """A run that ended after so many bytes."""
    to.write_bytes(whole.read_bytes()[:num_bytes])
    settings = whole.with_name(whole.name + ".settings.json")
    to.with_name(to.name + ".settings.json").write_bytes(settings.read_bytes())
    return to


def test_every_line_is_answered_in_order(whole):
    answers = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [a["index"] for a in answers] == list(range(14))
    assert [a.get("id", a.get("question_id")) for a in answers][:4] == [0, "p1", "p2", 3]
    assert "600 tokens" in answers[TOO_LONG]["error"]
    good = [a for a in answers if "error" not in a]
    assert len(good) == 13
    assert [a["seed"] for a in good] == [SEED + a["index"] for a in good]
    assert all(len(a["tokens"]) == 24 or a["finish_reason"] == "stop" for a in good)
    assert sum(a["num_rounds"] for a in good) < sum(len(a["tokens"]) for a in good)  # it drafts


def test_a_run_cut_off_anywhere_goes_on_to_the_same_bytes(whole, run, tmp_path):
    every = whole.read_bytes()
    after_four = every.index(b'{"index": 4')
    at_random = random.Random(0).sample(range(len(every)), 10)
    for cut in (0, after_four - 1, after_four, len(every) - 1, len(every), *at_random):
        assert run(copy(whole, tmp_path / f"{cut}.jsonl", cut)) == every


def test_lines_are_whole_up_to_their_last_byte(whole):
    every = whole.read_bytes()
    for cut in range(0, len(every) + 1, 7):
        lines = every[:cut].splitlines(keepends=True)
        num, size = whole_lines(lines, "answers")
        assert (num, size) == (every[:cut].count(b"\n"), every[:cut].rfind(b"\n") + 1)


def test_two_hosts_write_what_one_process_does_which_goes_on_where_they_are_killed(
    whole, run, folder, prompts, tmp_path
):
    output, expected = tmp_path / "answers.jsonl", whole.read_bytes()
    files = ("--input", prompts, "--output", output, "--target", folder)
    hosts = start_hosts([SCRIPT, *files, *SMALL], num_devices=1)
    ended = kill_after(8, output, hosts)
    assert count_lines(output) >= 8, ended
    assert expected.startswith(output.read_bytes())
    assert run(output) == expected


def kill_after(num_lines, output, processes, delay=0.0, victims=None):
    """Kill some processes, or all, once the output has so many lines; wait for the others."""
    while all(process.poll() is None for process in processes):
        if count_lines(output) >= num_lines:
            time.sleep(delay)
            break
        time.sleep(0.01)
    for process in processes if victims is None else victims:
        process.kill()
    return wait(processes)


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_other_settings_are_refused_by_name(whole, run, tmp_path):
    output = copy(whole, tmp_path / "answers.jsonl")
    with pytest.raises(ValueError, match=r"other settings \(temperature was 0\.0 and is 0\.5\)"):
        run(output, "--temperature", 0.5)
    assert output.read_bytes() == whole.read_bytes()


def test_a_file_that_is_not_its_own_is_left_alone(whole, run, tmp_path):
    output = tmp_path / "answers.jsonl"
    output.write_text("my notes\n")
    with pytest.raises(ValueError, match=r"line 1 is not answer 0"):
        run(output)
    for foreign in (b"my notes, without an end", whole.read_bytes()):
        output.write_bytes(foreign)
        with pytest.raises(ValueError, match=r"answers\.jsonl\.settings\.json does not"):
            run(output)
        assert output.read_bytes() == foreign
    copy(whole, output)
    output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=r"line 1 is not answer 0"):
        run(output)


def test_two_runs_do_not_write_one_file(whole, run, tmp_path):
    output = copy(whole, tmp_path / "answers.jsonl", 0)
    with output.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is writing it"):
            run(output)


@pytest.mark.parametrize("line", ["", "7", '{"question": 1}', '{"turns": []}', "{"])
def test_a_line_without_a_prompt_is_named(script, tmp_path, line):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"in\.jsonl, line 2: "):
        script.read_prompts(path)
    path.write_text("")
    with pytest.raises(ValueError, match="holds no line"):
        script.read_prompts(path)


@pytest.mark.parametrize("bad", [("--mesh", "4"), ("--mesh", "ax2"), ("--batch", "0")])
def test_bad_arguments_are_named(script, bad, capsys):
    with pytest.raises(SystemExit):
        script.parse(["--input", "a", "--output", "b", *bad])
    assert f"argument {bad[0]}" in capsys.readouterr().err


def test_a_seed_must_leave_one_for_every_line(run, tmp_path):
    with pytest.raises(ValueError, match="--seed"):
        run(tmp_path / "answers.jsonl", "--seed", 2**32 - 5)


def test_its_docstring_opens_with_the_command(script):
    first = script.__doc__.strip().splitlines()[0]
    assert first.startswith("python tpu_scripts/batch_generate.py ")


@pytest.fixture(scope="module")
def many(folder, tmp_path_factory):
    """200 prompts and their answers by one process of eight devices."""
    path = tmp_path_factory.mktemp("many") / "prompts.jsonl"
    write_prompts(path, 200)
    return path, by_one_process(path, folder, path.with_name("answers.jsonl"))


def by_one_process(path, folder, output, *more):
    files = ("--input", path, "--output", output, "--target", folder)
    ended = wait([start([SCRIPT, *files, *LARGE, *more], num_devices=8)])
    assert ended[0][0] == 0, ended
    return output.read_bytes()


@pytest.mark.slow
def test_two_hosts_killed_ten_times_write_every_line_once(many, folder, tmp_path):
    path, expected = many
    output, chance = tmp_path / "answers.jsonl", random.Random(0)
    command = [SCRIPT, "--input", path, "--output", output, "--target", folder, *LARGE]
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    for turn in range(10):
        hosts = start_hosts(command, **compiled)
        if turn % 3 == 0:  # while they start, compile, or decode
            ended = kill_after(0, output, hosts, delay=chance.uniform(1, 20))
        else:
            num_lines = count_lines(output) + chance.randint(1, 12)
            victim, delay = chance.randrange(2), chance.uniform(0, 0.5)
            ended = kill_after(num_lines, output, hosts, delay, [hosts[victim]])
            status, said = ended[1 - victim]
            assert status not in (0, -9), said  # it has noticed, and said so
            assert "Terminating process because" in said or "failed" in said
        assert -9 in [status for status, _ in ended], "all was done before the tenth kill"
        written = output.read_bytes() if output.exists() else b""
        assert expected.startswith(written)
        print(f"kill {turn + 1}: {[status for status, _ in ended]}, {count_lines(output)} lines")
    ended = wait(start_hosts(command, **compiled))
    assert [status for status, _ in ended] == [0, 0], ended
    assert ["200 lines" in said for _, said in ended] == [True, False]  # only one host reports
    assert output.read_bytes() == expected


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_two_hosts_write_200_answers_of_one_process(many, folder, draft, tmp_path):
    """Sampled, with each drafter; the draft model is the target itself, whole on every device."""
    path, _ = many
    drafter = "ngram"
    if draft == "model":
        drafter = write_tiny_folder(tmp_path / "draft")
    more = ("--drafter", drafter, "--temperature", 0.7)
    expected = by_one_process(path, folder, tmp_path / "one.jsonl", *more)
    output = tmp_path / "two.jsonl"
    files = ("--input", path, "--output", output, "--target", folder)
    ended = wait(start_hosts([SCRIPT, *files, *LARGE, *more]))
    assert [status for status, _ in ended] == [0, 0], ended
    assert output.read_bytes() == expected
