"""A JSONL file that grows in order, and of which a kill at any moment leaves whole lines behind."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any


@dataclasses.dataclass(frozen=True)
class Output:
    """A file of one JSON object a line, line i with "index" i; ``num_lines`` were there before."""

    file: IO[bytes]
    num_lines: int

    def append(self, answers: list[dict[str, Any]]) -> None:
        """Add lines, and return once they are on the disk."""
        self.file.write("".join(json.dumps(a) + "\n" for a in answers).encode())
        self.file.flush()
        os.fsync(self.file.fileno())


@contextlib.contextmanager
def opened(path: Path, settings: dict[str, Any]) -> Iterator[Output]:
    """Open an output to go on with it, without what a kill has left of a last line.

    Raises:
        ValueError: the file is not of these settings, or another process is writing it.
    """
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process lets go of it
        except BlockingIOError as error:
            raise ValueError(f"{path}: another process is writing it; wait or end it") from error
        file.seek(0)
        num_lines, size = whole_lines(file, path)
        keep_settings(path, settings, is_new=path.stat().st_size == 0)
        file.truncate(size)
        yield Output(file, num_lines)


def whole_lines(lines: Iterable[bytes], name: object) -> tuple[int, int]:
    r"""Count the lines that were written to their end, and their bytes.

    >>> whole_lines([b'{"index": 0}\n', b'{"index": 1}\n', b'{"ind'], "answers.jsonl")
    (2, 26)
    """
    num = size = 0
    for line in lines:
        if not line.endswith(b"\n"):
            break
        try:
            index = json.loads(line)["index"]
        except (ValueError, LookupError, TypeError):
            index = None
        if index != num:
            raise ValueError(f"{name}: line {num + 1} is not answer {num}; delete it, or repair it")
        num, size = num + 1, size + len(line)
    return num, size


def keep_settings(path: Path, settings: dict[str, Any], *, is_new: bool) -> None:
    """Write the settings beside a new output, and compare them with those of an old one.

    They are no line of the output, so that it has as many lines as the input and needs no reader
    of its own.
    """
    beside = path.with_name(path.name + ".settings.json")
    if not beside.exists() and not is_new:
        raise ValueError(f"{path}: exists, and {beside.name} does not; choose another --output")
    if beside.exists():
        before = json.loads(beside.read_text(encoding="utf-8"))
        names = sorted(before.keys() | settings.keys())
        changed = [
            f"{name} was {before.get(name)} and is {settings.get(name)}"
            for name in names
            if before.get(name) != settings.get(name)
        ]
        if changed:
            raise ValueError(
                f"{path}: was begun with other settings ({'; '.join(changed)}); give those, or "
                f"delete it and {beside.name}"
            )
        return
    draft = beside.with_name(beside.name + ".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(settings, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(beside)
