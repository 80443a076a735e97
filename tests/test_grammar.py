"""Grammars on the host: they allow exactly the texts they should, in any spelling."""

import json
import random
import re
import sys

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from toy_tokenizer import ToyTokenizer

from specjax.grammar import join, json_schema, regex
from specjax.grammar.integers import integers_between
from specjax.testing.statistics import sampling_values

PIECES = [b"ab", b"abc", b"ba", b"bc", b"a1", b"12", b"\xc3", b"\xa9a", b"\xc3\xa9", b"\xf0\x9f"]
EVERY_BYTE = ToyTokenizer([b"", *(bytes([b]) for b in range(256)), *PIECES, b"", b"ab"])

PATTERNS = [
    "a(b|c)*",
    "a|ab|abc",
    "(?:a+?b)*?c?",
    "",
    "é+|a\U0001f916?b",
    "[^a1]{0,2}1",
    r"(?i)abc|[0-9]{1,3}",
    ".*b",
    "(ab|ba|1){2,4}",
    r"a\$|b\^",
    "^(a|b)+$",
]


def spell(tokenizer, text, draw):
    """Cut the bytes of a text into tokens at random."""
    left, tokens = text.encode(), []
    while left:
        starts = [
            i for i in tokenizer.by_first_byte[left[0]] if left.startswith(tokenizer.token_bytes[i])
        ]
        tokens.append(draw.choice(starts))
        left = left[len(tokenizer.token_bytes[tokens[-1]]) :]
    return tokens


@pytest.mark.parametrize("pattern", PATTERNS)
def test_accepts_exactly_what_matches_in_any_spelling(pattern):
    grammar, draw, matched = regex(pattern, EVERY_BYTE), random.Random(0), set()
    for _ in range(1500):
        text = "".join(draw.choices("abc1é\U0001f916$^\n", k=draw.randrange(7)))
        expected = bool(re.fullmatch(pattern, text))
        assert grammar.accepts(spell(EVERY_BYTE, text, draw)) == expected, (text, expected)
        matched.add(expected)
    assert matched == ({True, False}), "the texts do not try both"


def walk(grammar, tokenizer, draw, limit=400):
    """A text made of tokens drawn among those allowed; stops are drawn where it may end."""
    state, tokens = 0, []
    while len(tokens) < limit:
        allowed = np.flatnonzero(grammar.table[state, grammar.classes] >= 0)
        if grammar.final[state] and (not len(allowed) or draw.random() < 0.3):
            return tokens
        tokens.append(int(draw.choice(allowed)))
        state = grammar.table[state, grammar.classes[tokens[-1]]]
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_allowed_token_can_be_completed(pattern):
    grammar, draw = regex(pattern, EVERY_BYTE), random.Random(1)
    for _ in range(50):
        tokens = walk(grammar, EVERY_BYTE, draw)
        if tokens is not None:
            text = EVERY_BYTE.text(tokens).decode()
            assert re.fullmatch(pattern, text), text


def test_states_that_no_token_can_finish_are_cut():
    """The bytes of "axc" and "y" could go on, but there is no token for x c or for y."""
    tokenizer = ToyTokenizer([b"", b"a", b"b", b"x", b"bb"])
    grammar = regex("axc|ab+|y", tokenizer)
    state = grammar.table[0, grammar.classes[1]]
    allowed = [grammar.table[state, c] >= 0 for c in grammar.classes]
    assert allowed == [False, False, True, False, True]
    with pytest.raises(ValueError, match="no sequence of this tokenizer's tokens"):
        regex("axc|y", tokenizer)
    with pytest.raises(ValueError, match="pattern: "):
        regex("[a&&b]", tokenizer)


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"(a)\1", r"\ba", "a^b", "(", "a{2"])
def test_what_no_automaton_can_follow_is_refused(pattern):
    with pytest.raises(ValueError, match="pattern: .* is no regular expression that an automaton"):
        regex(pattern, EVERY_BYTE)


def test_special_tokens_are_never_allowed():
    grammar = regex(".*", EVERY_BYTE)
    special = [i for i, t in enumerate(EVERY_BYTE.token_bytes) if not t]
    assert (grammar.table[:, grammar.classes[special]] == -1).all()
    assert len(special) == 2


def test_a_single_allowed_token_is_known_as_such():
    tokenizer = ToyTokenizer([b"", b"a", b"b", b"abb", b"c", b"bc", b"bcd", b"d"])
    for pattern in ("abc[ab]c?", "(a|b)c*", "abbbbc", "abcd"):
        grammar = regex(pattern, tokenizer)
        for state, only in enumerate(grammar.only):
            allowed = np.flatnonzero(grammar.table[state, grammar.classes] >= 0)
            sole = len(allowed) == 1 and not grammar.final[state]
            assert only == (allowed[0] if sole else -1)
            if only >= 0:
                assert grammar.likely[state] == only
    # b, bc and bcd all begin what must follow a; the longest is the one to draft.
    assert grammar.only[grammar.table[0, grammar.classes[1]]] == -1
    assert grammar.likely[grammar.table[0, grammar.classes[1]]] == 6


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(ImportError, match=r"pip install 'specjax\[grammar\]'"):
        regex("a", EVERY_BYTE)


# JSON schemas

SCHEMAS = [
    {"type": "boolean"},
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "integer", "minimum": -12, "exclusiveMaximum": 130},
    {"type": "number"},
    {"enum": ["a", 1, 1.5, True, None, {"x": [1, "*"]}]},
    {"enum": ["a", 1, 1.0, True, None], "type": ["number", "null"]},
    {"const": 'a "quoted" \\ é\n'},
    {"type": "string", "pattern": "^a|b{2}$"},
    {"type": "string", "format": "date-time"},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"const": 7}}},
    {"type": "object", "properties": {}},
    {
        "title": "all optional",
        "type": "object",
        "properties": {n: {"type": "boolean"} for n in "xyz"},
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {n: {"const": n} for n in "vwxyz"},
        "required": ["w", "y"],
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_whatever_is_allowed_validates(schema):
    grammar, draw, seen = json_schema(schema, EVERY_BYTE), random.Random(2), set()
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for _ in range(60):
        tokens = walk(grammar, EVERY_BYTE, draw)
        if tokens is None:
            continue
        text = EVERY_BYTE.text(tokens).decode()
        check.validate(json.loads(text))
        seen.add(text)
    assert seen


@pytest.mark.parametrize(
    ("schema", "values", "others"),
    [
        ({"type": "string", "maxLength": 2}, ["", "é", "\U0001f916a", '"\\', "a\n"], ["abc", 1]),
        ({"type": "number"}, [0, -1.5, 1e30, 12], ["1", True]),
        (SCHEMAS[4], ["a", 1, 1.5, True, None, {"x": [1, "*"]}], ["b", False, {"x": 1}]),
        (SCHEMAS[5], [1, 1.0, None], ["a", True]),
        (SCHEMAS[9], [[], [True], [False, True]], [[True] * 3, [1]]),
        (SCHEMAS[13], [{}, {"y": True}, {"x": True, "z": False}], [{"z": True, "x": True}]),
        (SCHEMAS[14], [{"w": "w", "y": "y"}, dict(zip("vwxyz", "vwxyz", strict=True))], [{}]),
        (SCHEMAS[7], ["a", "bb"], ["abb", "b"]),
    ],
)
def test_writes_all_values_as_json_dumps_does(schema, values, others):
    grammar, draw = json_schema(schema, EVERY_BYTE), random.Random(3)
    for expected, chosen in ((True, values), (False, others)):
        for value in chosen:
            text = json.dumps(value, ensure_ascii=False)
            assert grammar.accepts(spell(EVERY_BYTE, text, draw)) == expected, text
    tight = json_schema(schema, EVERY_BYTE, separators=(",", ":"))
    text = json.dumps(values[-1], ensure_ascii=False, separators=(",", ":"))
    assert tight.accepts(spell(EVERY_BYTE, text, draw))


def test_integers_between_bounds_are_those():
    for low in (None, *range(-130, 131, 13)):
        for high in (None, *range(-131, 131, 29)):
            if low is None or high is None or low <= high:
                found = re.compile(integers_between(low, high))
                for n in range(-1100, 1100, 7):
                    inside = (low is None or n >= low) and (high is None or n <= high)
                    assert bool(found.fullmatch(str(n))) == inside, (low, high, n)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "number", "minimum": 0}, "schema: minimum cannot be followed here"),
        ({"type": "array", "items": {"oneOf": []}}, r"schema.items: has no type"),
        ({"type": "array"}, "needs items"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object"}, "needs properties"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, r"schema\.a\.type: unknown"),
        ({"type": "object", "properties": {}, "required": ["b"]}, r"\['b'\] are not among"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
            },
            "contains itself",
        ),
        ({"$ref": "other.json"}, "must point into the schema"),
        ({"$ref": "#/nowhere"}, "there is no #/nowhere"),
        ({"type": "string", "pattern": ".*"}, "which JSON would have to escape"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "cannot be combined"),
        ({"type": "string", "format": "email"}, "unknown 'email'; known are date"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 is more than maxLength"),
        ({"type": "string", "maxLength": 1.5}, "must be an int of at least 0"),
        ({"type": "integer", "minimum": 1.5}, "must be a whole number"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer lies between 3 and 2"),
        ({"enum": ["a"], "type": "null"}, "no value satisfies"),
        ({"enum": []}, "must be a list of at least 1"),
        ("{", "schema: is not valid JSON"),
        ("[]", "must be a JSON object"),
        ({"const": {1, 2}}, "schema: is not valid JSON"),
    ],
    ids=str,
)
def test_what_a_schema_says_is_followed_or_refused(schema, complaint):
    with pytest.raises(ValueError, match=complaint):
        json_schema(schema, EVERY_BYTE)


# Several in one batch


def test_joined_grammars_are_each_themselves():
    first, second = regex("a(b|c)*", EVERY_BYTE), regex("1{2,3}|é", EVERY_BYTE)
    size = len(EVERY_BYTE.token_bytes) + 5  # a target may pad its vocabulary
    constraint, start = join([first, None, second, first], size)
    assert start.tolist() == [1, 0, 1 + first.num_states, 1]
    assert np.asarray(constraint.automaton.allowed(0)).all()
    table = np.asarray(constraint.automaton.table)[:, np.asarray(constraint.automaton.classes)]
    for grammar, begin in ((first, 1), (second, 1 + first.num_states)):
        rows = slice(begin, begin + grammar.num_states)
        own = grammar.table[:, grammar.classes]
        np.testing.assert_array_equal(table[rows, :-5], np.where(own >= 0, own + begin, -1))
        assert (table[rows, -5:] == -1).all()
        for ours, theirs in (("final", "final"), ("only", "only"), ("likely", "likely")):
            kept = np.asarray(getattr(constraint, ours))[rows]
            np.testing.assert_array_equal(kept, getattr(grammar, theirs))
    other, _ = join([second], size)
    shapes = [[x.shape for x in jax.tree.leaves(c)] for c in (constraint, other)]
    assert shapes[0] == shapes[1]
    with pytest.raises(ValueError, match="more than the target's 9 tokens"):
        join([first], 9)


def test_stop_ids_are_allowed_exactly_where_a_text_may_end():
    grammar = regex("ab?", EVERY_BYTE)
    constraint, start = join([grammar], len(EVERY_BYTE.token_bytes))
    row = jax.tree.map(lambda x: x[0], sampling_values(1, stop_ids=(0, -1)))
    logits, a = jnp.zeros(len(EVERY_BYTE.token_bytes), jnp.float32), 1 + ord("a")
    begin = jnp.asarray(start[0])
    after = constraint.advance(begin, jnp.int32(a))
    seen = {}
    for name, state in {"start": begin, "a": after, "free": jnp.int32(0)}.items():
        masked = np.asarray(constraint.apply(logits, state, row))
        assert not np.isnan(masked).any()
        seen[name] = [masked[0] == 0, masked[a] == 0, masked[1 + ord("b")] == 0]
    assert seen == {
        "start": [False, True, False],
        "a": [True, False, True],
        "free": [True, True, True],
    }
    assert constraint.advance(begin, jnp.int32(0)) == begin
    assert constraint.forced(begin) == -1, "the token ab may come as well"
