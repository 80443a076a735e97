"""Questions to measure with: what is asked, in which category, and how it is answered."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Question:
    """Turns of a user, asked one after the other; settings of its own where they are not None.

    ``max_new_tokens`` is of each turn, and ``json_schema`` a JSON schema as text.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    max_new_tokens: int | None = None
    temperature: float | None = None
    json_schema: str | None = None


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Read a JSONL file in UTF-8: ``question_id``, ``category`` and ``turns`` on each line.

    Other keys and blank lines are skipped. This is the form of Spec-Bench (Xia et al. 2024).

    Raises:
        OSError: there is no such file, or it may not be read.
        ValueError: a line is no such question, an id comes twice, or there is no question at all.
    """
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    # Not splitlines: a text may hold line separators of Unicode, which end no line of JSONL.
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"questions: {os.fspath(path)} line {number}"
        question = _question(line, where)
        if question.id in line_of:
            first = line_of[question.id]
            raise ValueError(
                f"{where}: question_id {question.id!r} is that of line {first}, too; "
                "give each question its own"
            )
        line_of[question.id] = number
        questions.append(question)
    if not questions:
        raise ValueError(
            f"questions: {os.fspath(path)} holds no question; write one JSON object a line"
        )
    return questions


def choose(
    questions: Sequence[Question],
    categories: Sequence[str] | None = None,
    per_category: int | None = None,
) -> list[Question]:
    """Keep these categories, and of each the first ``per_category`` questions; the order stays.

    Raises:
        ValueError: no question is of such a category, or ``per_category`` is not positive.
    """
    if per_category is not None and per_category < 1:
        raise ValueError(f"per_category: must be positive, got {per_category}; None keeps all")
    known = sorted({question.category for question in questions})
    wanted = known if categories is None else categories
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"categories: no question is of {unknown[0]!r}; known are {known}")
    chosen: list[Question] = []
    taken: Counter[str] = Counter()
    for question in questions:
        full = per_category is not None and taken[question.category] >= per_category
        if question.category in wanted and not full:
            chosen.append(question)
            taken[question.category] += 1
    return chosen


def _question(line: bytes, where: str) -> Question:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: is not UTF-8 ({error}); save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON ({error}); write one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(
            f"{where}: must be an object with question_id, category and turns, "
            f"got {type(record).__name__}"
        )
    for key in ("question_id", "category", "turns"):
        if key not in record:
            raise ValueError(f"{where}: has no {key}; add it")
    return Question(_id(record, where), _category(record, where), _turns(record, where))


def _id(record: dict[str, Any], where: str) -> str:
    given = record["question_id"]
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError(f"{where}: question_id must be an integer or a string, got {_kind(given)}")
    return str(given)


def _category(record: dict[str, Any], where: str) -> str:
    given = record["category"]
    if not isinstance(given, str) or not given:
        raise ValueError(f"{where}: category must be a nonempty string, got {_kind(given)}")
    return given


def _turns(record: dict[str, Any], where: str) -> tuple[str, ...]:
    given = record["turns"]
    if not isinstance(given, list) or not given:
        raise ValueError(
            f"{where}: turns must be a list of at least one string, got {_kind(given)}"
        )
    for index, turn in enumerate(given):
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(
                f"{where}: turns[{index}] must be a nonempty string, got {_kind(turn)}"
            )
    return tuple(given)


def _kind(value: Any) -> str:
    """What a value is, for an error."""
    return f"an empty {type(value).__name__}" if value in ("", []) else f"a {type(value).__name__}"
