"""JSON strings and integers as regular expressions: how long, between which bounds."""

from __future__ import annotations

from specjax.grammar.byte_automaton import byte_automaton, without_anchors
from specjax.grammar.integers import integers_between

CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
DATE = (
    r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
FORMATS = {
    "date": DATE,
    "date-time": DATE + r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
INTEGER_BOUNDS = {"minimum": 0, "exclusiveMinimum": 1, "maximum": 0, "exclusiveMaximum": -1}
"""From each bound to the nearest integer that is allowed."""


def string_pattern(schema: dict, place: str) -> str:
    """A string of so many characters, of a pattern or of a format; an escape is one character."""
    how = schema.keys() & {"minLength", "maxLength", "pattern", "format"}
    if "pattern" in how or "format" in how:
        if len(how) > 1:
            raise ValueError(f"{place}: {' and '.join(sorted(how))} cannot be combined; keep one")
        return f'"{_format(schema, place) if "format" in how else _pattern(schema, place)}"'
    least, most = count_bounds(schema, "minLength", "maxLength", place)
    return f'"{CHARACTER}{{{least},{"" if most is None else most}}}"'


def _format(schema: dict, place: str) -> str:
    if schema["format"] not in FORMATS:
        raise ValueError(
            f"{place}.format: unknown {schema['format']!r}; known are {', '.join(FORMATS)}; "
            "or give a pattern"
        )
    return FORMATS[schema["format"]]


def _pattern(schema: dict, place: str) -> str:
    """A pattern of the characters between the quotes, none of which JSON would have to escape."""
    pattern = schema["pattern"]
    table, _ = byte_automaton(pattern)
    unsafe = [*range(0x20), ord('"'), ord("\\")]
    if (table[:, unsafe] >= 0).any():
        raise ValueError(
            f"{place}.pattern: {pattern!r:.60} may match a quote, a backslash or a control "
            "character, which JSON would have to escape; leave them out of its classes"
        )
    return f"(?:{without_anchors(pattern)})"


def integer_pattern(schema: dict, place: str) -> str:
    """An integer between the bounds that are given."""
    known = {n: _whole(schema[n], f"{place}.{n}") for n in INTEGER_BOUNDS if n in schema}
    shifted = {n: value + INTEGER_BOUNDS[n] for n, value in known.items()}
    low = max((v for n, v in shifted.items() if n.endswith("inimum")), default=None)
    high = min((v for n, v in shifted.items() if n.endswith("aximum")), default=None)
    if low is not None and high is not None and low > high:
        raise ValueError(f"{place}: no integer lies between {low} and {high}")
    return integers_between(low, high)


def _whole(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
        raise ValueError(f"{place}: must be a whole number, got {value!r}")
    return int(value)


def count_bounds(schema: dict, low: str, high: str, place: str) -> tuple[int, int | None]:
    """The least and the largest number of characters or items; None is no bound."""
    least, most = schema.get(low, 0), schema.get(high)
    for name, value in ((low, least), (high, 0 if most is None else most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{place}.{name}: must be an int of at least 0, got {value!r}")
    if most is not None and least > most:
        raise ValueError(f"{place}: {low} {least} is more than {high} {most}")
    return least, most
