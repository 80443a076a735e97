"""What ``--drafter`` may say, and what it is told when it says it wrong."""

import pytest

from specjax.cli.drafters import drafter_of
from specjax.drafters import DraftModel, EarlyExit, FirstOf, Lookahead, NGram, Retrieval, Suffix
from specjax.io import build_datastore, save_datastore

TARGET = object()


def made(text):
    return drafter_of(text, TARGET, "the-target", 3)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.safetensors"
    save_datastore(build_datastore([[1, 2, 3]], vocab_size=5), path)
    return str(path)


def test_names_make_drafters_of_the_asked_length(store):
    assert made("ngram") == NGram(3)
    assert made("suffix") == Suffix(3)
    assert made("lookahead") == Lookahead(ngram=4)
    assert made("early-exit:22") == EarlyExit(22, 3)
    assert made("the-target") == DraftModel(TARGET, 3)
    kinds = [type(made(f"{name}:{store}")) for name in ("retrieval", "suffix")]
    assert kinds == [Retrieval, Suffix]


def test_several_are_asked_in_turn():
    several = made("ngram, early-exit:4")
    assert isinstance(several, FirstOf)
    assert several.drafters == (NGram(3), EarlyExit(4, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("early-exit", "early-exit needs a number of layers"),
        ("early-exit:many", "early-exit needs a number of layers"),
        ("retrieval", "retrieval needs a store"),
        ("ngram:5", "ngram takes nothing after a colon"),
        ("no-such-model", "--drafter: is none, ngram, suffix"),
    ],
)
def test_what_is_missing_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        made(text)
