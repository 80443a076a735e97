"""From a JSON schema to a regular expression of the texts that validate against it.

Known keywords, by type; whatever else a schema says is refused by name:

- any: ``type`` (one or a list), ``enum``, ``const``, ``anyOf``, ``$ref`` within the schema and
  not to itself; ``title``, ``description`` and other annotations say nothing.
- string: ``minLength``, ``maxLength``, or ``pattern``, or ``format`` date, date-time, uuid.
- integer: ``minimum``, ``maximum``, ``exclusiveMinimum``, ``exclusiveMaximum``.
- array: ``items``, ``minItems``, ``maxItems``.
- object: ``properties``, ``required``, ``additionalProperties`` (none is ever written).
- number, boolean, null.
"""

from __future__ import annotations

import json
import re
from typing import Any

from specjax.grammar.scalars import NUMBER, count_bounds, integer_pattern, string_pattern

ANNOTATIONS = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description"} | {
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
}
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}


def schema_pattern(schema: dict[str, Any] | str, separators: tuple[str, str] = (", ", ": ")) -> str:
    r"""The texts that validate, as ``json.dumps`` writes them with these separators.

    >>> print(schema_pattern({"type": "array", "items": {"enum": [1, "a.b"]}, "maxItems": 2}))
    \[(?:(?:1|"a\.b")(?:, (?:1|"a\.b")){0,1})?\]

    Raises:
        ValueError: the schema is no JSON object, or says what is not known here.
    """
    try:  # and from here on it holds nothing that JSON does not know
        text = schema if isinstance(schema, str) else json.dumps(schema)
        schema = json.loads(text, parse_constant=_refuse)
    except (TypeError, ValueError) as error:
        raise ValueError(f"schema: is not valid JSON ({error})") from None
    return _Writer(schema, separators).write(schema, "schema", ())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class _Writer:
    """Writes the pattern of one schema; ``place`` says where in it we are, for complaints."""

    def __init__(self, root: Any, separators: tuple[str, str]) -> None:
        self.root = root
        self.separators = separators
        self.comma, self.colon = map(literal, separators)

    def write(self, schema: Any, place: str, inside: tuple[str, ...]) -> str:
        """``inside`` are the references on the way here: one that comes again never ends."""
        if not isinstance(schema, dict):
            raise ValueError(f"{place}: must be a JSON object, got {schema!r:.60}")
        said = schema.keys() - ANNOTATIONS
        if "$ref" in said:
            _only(said, {"$ref"}, place)
            return self._reference(schema["$ref"], place, inside)
        if "anyOf" in said:
            _only(said, {"anyOf"}, place)
            choices = _list(schema["anyOf"], f"{place}.anyOf")
            return _any([self.write(s, f"{place}.anyOf", inside) for s in choices])
        if said & {"enum", "const"}:
            _only(said, {"enum", "const", "type"}, place)
            return self._values(schema, place)
        if "type" not in said:
            raise ValueError(f"{place}: has no type; say which of {', '.join(KEYWORDS)} it is")
        return self._types(schema, said, place, inside)

    def _types(self, schema: dict, said: set[str], place: str, inside: tuple[str, ...]) -> str:
        types = _type_names(schema, place)
        _only(said, {"type"}.union(*(KEYWORDS[t] for t in types)), place)
        simple = {"number": NUMBER, "boolean": "(?:true|false)", "null": "null"}
        patterns = []
        for name in types:
            if name in simple:
                patterns.append(simple[name])
            elif name == "string":
                patterns.append(string_pattern(schema, place))
            elif name == "integer":
                patterns.append(integer_pattern(schema, place))
            elif name == "array":
                patterns.append(self._array(schema, place, inside))
            else:
                patterns.append(self._object(schema, place, inside))
        return _any(patterns)

    def _reference(self, to: Any, place: str, inside: tuple[str, ...]) -> str:
        if not isinstance(to, str) or not to.startswith("#/"):
            raise ValueError(f"{place}.$ref: must point into the schema (#/...), got {to!r}")
        if to in inside:
            raise ValueError(
                f"{place}.$ref: {to} contains itself, and no automaton can count how deep; "
                "write out as many levels as you need"
            )
        found = self.root
        for step in to[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise ValueError(f"{place}.$ref: there is no {to} in the schema")
            found = found[step]
        return self.write(found, to, (*inside, to))

    def _values(self, schema: dict, place: str) -> str:
        values = [schema["const"]] if "const" in schema else _list(schema["enum"], place + ".enum")
        if "enum" in schema:
            values = [v for v in values if _same(v, schema["enum"])]
        if "type" in schema:
            values = [v for v in values if _type_of(v) & set(_type_names(schema, place))]
        if not values:
            raise ValueError(f"{place}: no value satisfies const, enum and type together")
        return _any(
            [literal(json.dumps(v, ensure_ascii=False, separators=self.separators)) for v in values]
        )

    def _array(self, schema: dict, place: str, inside: tuple[str, ...]) -> str:
        least, most = count_bounds(schema, "minItems", "maxItems", place)
        if most == 0:
            return r"\[\]"
        if "items" not in schema:
            raise ValueError(f"{place}: an array needs items, a schema of what it holds")
        item = self.write(schema["items"], f"{place}.items", inside)
        rest = "" if most is None else most - 1
        several = f"{item}(?:{self.comma}{item}){{{max(least - 1, 0)},{rest}}}"
        return rf"\[{several}\]" if least else rf"\[(?:{several})?\]"

    def _object(self, schema: dict, place: str, inside: tuple[str, ...]) -> str:
        if not isinstance(schema.get("properties"), dict):
            raise ValueError(f"{place}: an object needs properties, a schema for each name")
        properties = schema["properties"]
        required = set(_list(schema.get("required", []), f"{place}.required", least=0))
        if missing := required - properties.keys():
            raise ValueError(f"{place}.required: {sorted(missing)} are not among the properties")
        members = []
        for name, of in properties.items():
            value = self.write(of, f"{place}.{name}", inside)
            key = literal(json.dumps(name, ensure_ascii=False))
            members.append((f"{key}{self.colon}{value}", name in required))
        return rf"\{{{self._members(members)}\}}"

    def _members(self, members: list[tuple[str, bool]]) -> str:
        """Members with commas between those that are there."""
        firsts = [i for i, (_, needed) in enumerate(members) if needed]
        if firsts:  # optional ones before the first needed one bring the comma after them
            first = firsts[0]
            before = "".join(f"(?:{m}{self.comma})?" for m, _ in members[:first])
            return before + members[first][0] + self._after(members[first + 1 :])
        starts = [m + self._after(members[i + 1 :]) for i, (m, _) in enumerate(members)]
        return f"(?:{'|'.join(starts)})?" if starts else ""

    def _after(self, members: list[tuple[str, bool]]) -> str:
        return "".join(f"(?:{self.comma}{m}){'' if need else '?'}" for m, need in members)


def literal(text: str) -> str:
    """A pattern that matches ``text`` alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)


def _any(patterns: list[str]) -> str:
    return patterns[0] if len(patterns) == 1 else f"(?:{'|'.join(patterns)})"


def _type_names(schema: dict, place: str) -> list[str]:
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    unknown = [t for t in types if not isinstance(t, str) or t not in KEYWORDS]
    if unknown or not types:
        raise ValueError(f"{place}.type: unknown {unknown}; known are {', '.join(KEYWORDS)}")
    return types


def _type_of(value: Any) -> set[str]:
    """The names JSON schema has for the type of a value; an integer is a number too."""
    if value is None or isinstance(value, bool):
        return {"null" if value is None else "boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if float(value).is_integer() else {"number"}
    return {{str: "string", list: "array", dict: "object"}[type(value)]}


def _same(value: Any, values: list) -> bool:
    """Whether JSON has the value among these: True is not 1 there."""
    return json.dumps(value) in map(json.dumps, values)


def _list(value: Any, place: str, least: int = 1) -> list:
    if not isinstance(value, list) or len(value) < least:
        raise ValueError(f"{place}: must be a list of at least {least}, got {value!r:.60}")
    return value


def _only(said: set[str], known: set[str], place: str) -> None:
    unknown = sorted(said - known)
    if unknown:
        raise ValueError(
            f"{place}: {', '.join(unknown)} cannot be followed here; known are "
            f"{', '.join(sorted(known))}"
        )
