"""Kinds of tokens, by worked cases: each rule, and which of two that fit goes first."""

import pytest

from specjax.bench.kinds import KINDS, SPAN, kinds_of

SHORT = {
    "b": "bracket",
    "d": "digit",
    "n": "name",
    "w": "word continuation",
    "c": "clause start",
    "q": "quoted span",
    "o": "other",
}


def kinds(text, prompt=""):
    """The kinds of the pieces between bars."""
    names = {kind: letter for letter, kind in SHORT.items()}
    return "".join(names[kind] for kind in kinds_of(text.split("|"), prompt))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("he| sees| Anna", "con"),
        ("the| cat| s|leeps", "coow"),  # the second half of a word
        ("he| sees| An|na|Lena", "conww"),  # a capital within a word begins no name
        ("so| I| am", "coo"),  # the pronoun
        ("yes|.| No|,| thanks|;| bye|:| now|!| On|?| Up", "cococococococ"),
        ("yes|\n\n|No|\n-| then", "cococ"),
        ("yes|.\n|No", "coc"),
        ("yes|.|\n", "coo"),  # white space starts nothing
        ("yes|.|\nNo", "coc"),
        ("yes|. No| Al", "ccn"),  # the mark is in the piece itself
        ('he| said|,| "|Anna|"', "coooco"),  # a quotation mark does not end the wait
        ("x| =| [|1|,| 2|]|;", "cobdodbo"),
        ("a| 3|.|14| metres", "cdodo"),  # a decimal point starts no clause
        ("f|(x|)", "cob"),  # a bracket with a letter is a word
        ("x2| v1|1", "ddd"),
        ("|yes||no", "ocow"),  # empty pieces are skipped over
        ("être| Élan| 北京", "cno"),
        ("\ufffd|\ufffd", "oo"),  # pieces of a character
    ],
)
def test_kinds_without_a_prompt(text, expected):
    assert kinds(text) == expected


def test_a_quotation_is_long_enough_and_literal():
    prompt = "Fix: the quick brown fox jumps."
    assert kinds("It| is| the| quick| brown| fox| now", prompt) == "coqqqqo"
    assert len(" the quick") < SPAN
    assert kinds("It| is| the| quick| red", prompt) == "coooo"
    assert kinds("It| is| the| quick| b", prompt) == "coqqq"  # twelve characters
    assert kinds("It| is| The| quick| brown", prompt)[2] == "n"


def test_two_quotations_that_overlap_are_no_gap():
    prompt = "one two three four / three four five six"
    assert kinds("one| two| three| four| five| six", prompt) == "qqqqqq"


def test_brackets_and_digits_go_before_quotations_and_quotations_before_the_rest():
    prompt = "def run(Anna, 12, values): pass"
    assert kinds("def| run|(|Anna|,| |12|,| val|ues|):| pass", prompt) == "qqbqqqdqqqbq"


def test_every_kind_is_named_once():
    assert sorted(KINDS) == sorted(SHORT.values())
    assert kinds_of([]) == []
