"""Questions of six kinds of work, each made from a seed: nothing is read and nothing fetched.

The first four quote their prompt, or are forced by a grammar: drafters are at home there.
Classification is too short for any to pay, and open writing at a high temperature is where
drafts are wrong most often.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from specjax.bench.questions import Question

NUM_QUESTIONS = 4
"""Of each workload."""

CLASS_TOKENS, WRITING_TEMPERATURE = 4, 1.5
NUM_SENTENCES, NUM_MISSPELLED, NUM_FACTS, NUM_RECORDS = 18, 10, 50, 3

PEOPLE = ("Ingrid", "Tomas", "Leila", "Marek", "Sofia", "Henrik", "Amara", "Pavel", "Noor", "Elias")
TOWNS = ("Bergen", "Porto", "Ghent", "Tartu", "Graz", "Cork", "Turku", "Split", "Lund", "Brno")
TRADES = ("baker", "carpenter", "gardener", "nurse", "teacher", "printer", "sailor", "weaver")
THINGS = ("lantern", "compass", "kettle", "clock", "basket", "violin", "ladder", "mirror", "globe")
MATERIALS = ("copper", "pine", "glass", "brass", "willow", "silver", "marble", "steel")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

SENTENCES = (
    "On {day} {person} carried the {thing} from the workshop to the market in {town}.",
    "The {trade} who lives next door had promised to repair the {thing} before the evening.",
    "Nobody in {town} could remember when the {material} {thing} had been bought.",
    "{person} wrote a short letter about it and waited several days for an answer.",
    "After breakfast the children of the {trade} walked along the river and counted the bridges.",
    "It was already getting dark when {person} noticed that the window had been left open.",
    "The museum in {town} keeps a {material} {thing} that is almost two hundred years old.",
    "Every {day} the {trade} sweeps the narrow street between the church and the station.",
    "{person} thought that the journey to {town} would take no longer than three hours.",
    "A heavy storm had damaged the roof, so the {thing} was moved to another building.",
    "Because the {material} was expensive, they decided to build a smaller {thing} instead.",
    "The neighbours brought bread and cheese, and {person} made a large pot of coffee.",
    "In the afternoon a {trade} from {town} explained how such a {thing} is made by hand.",
    "Without another word {person} closed the heavy door and followed the others upstairs.",
)

METHODS = (
    '    def add(self, {key}, {value}):\n        """Store one {thing}."""\n'
    "        if {key} in self.{things}:\n"
    '            raise ValueError(f"{{{key}!r}} is there already")\n'
    "        self.{things}[{key}] = {value}",
    '    def remove(self, {key}):\n        """Forget one {thing} and return its {value}."""\n'
    "        {value} = self.{things}.pop({key})\n        self.removed.append({key})\n"
    "        return {value}",
    '    def total(self):\n        """Add up every {value}."""\n'
    "        return sum({value} for {value} in self.{things}.values())",
    '    def above(self, limit):\n        """List each {key} whose {value} is above the limit."""\n'
    "        return [{key} for {key}, {value} in self.{things}.items() if {value} > limit]",
    '    def change(self, {key}, {value}):\n        """Replace the {value} of one {thing}."""\n'
    "        old = self.{things}[{key}]\n        self.{things}[{key}] = {value}\n"
    "        return {value} - old",
    '    def report(self):\n        """Describe all, one {thing} a line."""\n        lines = []\n'
    "        for {key}, {value} in sorted(self.{things}.items()):\n"
    '            lines.append(f"{{{key}}}: {{{value}}}")\n        return "\\n".join(lines)',
)
KEYS, VALUES, NEW_NAMES = (
    ("name", "code", "label"),
    ("price", "weight", "count"),
    ("amount", "size"),
)

FACT = (
    "Item {number}: the {material} {thing} was made by {person}, a {trade} in {town}, "
    "and has stood on shelf {shelf} since {year}."
)

RECORDS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": NUM_RECORDS,
    "maxItems": NUM_RECORDS,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 18, "maximum": 99},
            "town": {"type": "string", "minLength": 1, "maxLength": 12},
            "trade": {"enum": list(TRADES)},
            "owns": {"type": "array", "items": {"enum": list(THINGS)}, "maxItems": 2},
            "member": {"type": "boolean"},
        },
        "required": ["name", "age", "town", "trade", "owns", "member"],
        "additionalProperties": False,
    },
}

OPINIONS = (
    ("positive", "I am delighted with this {thing}; it works better than I had hoped."),
    ("negative", "The {thing} broke after two days, and nobody answered my letters."),
    ("positive", "A lovely {thing}. My friends in {town} want to have the same one."),
    ("negative", "I regret buying this {thing}: the {material} is thin and it smells."),
    ("neutral", "The {thing} is made of {material} and came in a brown box on {day}."),
    ("neutral", "I ordered the {thing} from a shop in {town} and have not used it yet."),
)

STORIES = (
    "Write a short story about a {trade} who finds a {material} {thing} near {town}.",
    "Write a poem in which a {thing} made of {material} speaks to {person}.",
    "Describe a dream that a {trade} in {town} has about a {thing}.",
    "Write a letter in which {person} from {town} explains why the {thing} must be given away.",
    "Invent a legend that tells why every {trade} in {town} owns a {material} {thing}.",
)


def make(names: Sequence[str], seed: int) -> list[Question]:
    """Make the questions of these workloads; the same seed makes the same texts.

    Raises:
        ValueError: there is no such workload.
    """
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise ValueError(f"workloads: there is no {unknown[0]!r}; known are {list(WORKLOADS)}")
    return [question for name in dict.fromkeys(names) for question in WORKLOADS[name](seed)]


def editing_task(rng: random.Random) -> tuple[str, str]:
    """A prompt with a paragraph full of mistakes, and the paragraph without them."""
    wrong, right = rng.sample(PEOPLE, 2)
    others = [person for person in PEOPLE if person != wrong]
    sentences = [_filled(rng, text, person=rng.choice(others)) for text in SENTENCES]
    sentences += [_filled(rng, text, person=right) for text in SENTENCES]
    text = " ".join(rng.sample(sentences, NUM_SENTENCES - 1))
    text += f" In the end it was {right} who laughed first."
    damaged = _misspelled(rng, text.replace(right, wrong))
    ask = f"Correct the spelling of this text, and write {right} wherever it says {wrong}"
    return f"{ask}. Change nothing else. Answer with the text alone.\n\n{damaged}", text


def code_task(rng: random.Random) -> tuple[str, str]:
    """A prompt with a module of Python and a change to make, and the changed module."""
    thing, key, value = rng.choice(THINGS), rng.choice(KEYS), rng.choice(VALUES)
    names = {"thing": thing, "things": f"{thing}s", "key": key, "value": value}
    methods = [method.format(**names) for method in rng.sample(METHODS, len(METHODS) - 1)]
    start = "    def __init__(self):\n        self.{things} = {{}}\n        self.removed = []"
    head = f'"""A store of {thing}s."""\n\n\nclass Store:\n    """Every {thing} by its {key}."""'
    module = "\n\n".join([head, start.format(**names), *methods]) + "\n"
    if rng.random() < 0.5:
        new = rng.choice(NEW_NAMES)
        change, answer = f"Rename {value} to {new}", re.sub(rf"\b{value}\b", new, module)
    else:
        change = "Add a parameter owner to __init__ and keep it in self.owner"
        answer = module.replace("(self):\n        self.", "(self, owner):\n        self.", 1)
        answer = answer.replace("removed = []", "removed = []\n        self.owner = owner", 1)
    return f"{change} in this file. Answer with the whole file.\n\n{module}", answer


def json_task(rng: random.Random) -> tuple[str, str]:
    """A prompt that describes people in prose, and the same as JSON of ``RECORDS_SCHEMA``."""
    records, prose = [], []
    for name in rng.sample(PEOPLE, NUM_RECORDS):
        age, town, trade = rng.randint(18, 99), rng.choice(TOWNS), rng.choice(TRADES)
        owns, member = rng.sample(THINGS, 2), rng.random() < 0.5
        prose.append(
            f"{name} is a {trade} of {age} from {town} and owns a {owns[0]} and a {owns[1]}; "
            f"{name} is {'a' if member else 'no'} member of the club."
        )
        records.append(
            {"name": name, "age": age, "town": town, "trade": trade, "owns": owns, "member": member}
        )
    ask = "Write these people as a JSON array of objects with name, age, town, trade, owns, member."
    return "\n\n".join([ask, " ".join(prose)]), json.dumps(records)


def long_context_task(rng: random.Random) -> tuple[str, str]:
    """A prompt of some 1,500 to 2,000 tokens of facts, and the three that it asks for."""
    facts = [
        _filled(rng, FACT, number=i, shelf=rng.randint(1, 60), year=rng.randint(1900, 1999))
        for i in range(1, NUM_FACTS + 1)
    ]
    asked = sorted(rng.sample(range(1, NUM_FACTS + 1), 3))
    first, second, third = asked
    ask = f"Quote the sentences on items {first}, {second} and {third} word for word."
    return "\n".join([*facts, "", ask]), "\n".join(facts[i - 1] for i in asked)


def _with_answer(name: str, task: Callable[[random.Random], tuple[str, str]], **settings: Any):
    """Questions whose right answer is known, though nobody is told it."""

    def questions(seed: int) -> list[Question]:
        rng = _rng(name, seed)
        return _listed(name, seed, [task(rng)[0] for _ in range(NUM_QUESTIONS)], **settings)

    return questions


def _classification(seed: int) -> list[Question]:
    rng = _rng("classification", seed)
    ask = "Is this review positive, negative or neutral? Answer with one word.\n\n"
    reviews = rng.sample(OPINIONS, NUM_QUESTIONS)
    prompts = [ask + _filled(rng, text) for _, text in reviews]
    return _listed("classification", seed, prompts, max_new_tokens=CLASS_TOKENS)


def _open_writing(seed: int) -> list[Question]:
    rng = _rng("open-writing", seed)
    prompts = [_filled(rng, text) for text in rng.sample(STORIES, NUM_QUESTIONS)]
    return _listed("open-writing", seed, prompts, temperature=WRITING_TEMPERATURE)


def _rng(name: str, seed: int) -> random.Random:
    """A stream of its own, so that a workload is the same whichever others are made with it."""
    return random.Random(f"{name} {seed}")


def _listed(name: str, seed: int, prompts: Sequence[str], **settings: Any) -> list[Question]:
    return [Question(f"{name}-{seed}-{i}", name, (p,), **settings) for i, p in enumerate(prompts)]


def _filled(rng: random.Random, text: str, **given: Any) -> str:
    slots = {"person": PEOPLE, "town": TOWNS, "trade": TRADES, "thing": THINGS}
    slots |= {"material": MATERIALS, "day": DAYS}
    return text.format(**{name: rng.choice(words) for name, words in slots.items()} | given)


def _misspelled(rng: random.Random, text: str) -> str:
    """Break some of the longer words, none of them a name."""
    words = [found.span() for found in re.finditer(r"\b[a-z]{6,}\b", text)]
    for start, end in sorted(rng.sample(words, NUM_MISSPELLED), reverse=True):
        text = text[:start] + _misspelled_word(rng, text[start:end]) + text[end:]
    return text


def _misspelled_word(rng: random.Random, word: str) -> str:
    """Leave a letter out, or write one twice."""
    at = rng.randrange(1, len(word) - 1)
    return word[:at] + word[at + 1 :] if rng.random() < 0.5 else word[:at] + word[at] + word[at:]


WORKLOADS: dict[str, Callable[[int], list[Question]]] = {
    "editing": _with_answer("editing", editing_task),
    "code": _with_answer("code", code_task),
    "json": _with_answer("json", json_task, json_schema=json.dumps(RECORDS_SCHEMA)),
    "long-context": _with_answer("long-context", long_context_task),
    "classification": _classification,
    "open-writing": _open_writing,
}
