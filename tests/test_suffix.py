"""Suffix scoring against a plain Python reference, on random texts and on texts made by hand."""

from collections import Counter
from fractions import Fraction
from math import floor

import jax
import numpy as np
import pytest
from test_retrieval import SMALL, STORE, VOCAB, drafted, ends_alike, propose, random_texts
from test_trie import heaviest

from specjax.drafters.suffix import SCORES, Suffix
from specjax.testing import TableLM

K, LONGEST, FLOOR, FACTOR = 4, 3, 0.37, 1.5  # no share of so few places is the floor itself


def suffix(**fields):
    return Suffix(K, LONGEST, floor=FLOOR, factor=FACTOR, **fields)


def followers(text, size, store):
    """What followed each match of so many tokens: the latest first; in the store as sorted."""
    if store is None:
        places = [p for p in range(len(text) - 1) if ends_alike(text[: p + 1], text, size)]
        return [text[p + 1 : p + 1 + K] for p in reversed(places)]
    tokens, found = np.asarray(store.tokens).tolist(), []
    for place in np.asarray(store.order):
        if size <= len(text) and tokens[place : place + size] == text[-size:]:
            after = [*tokens[place + size : place + size + K], -1]
            found.append(after[: after.index(-1)])
    return found


def promising(texts, most):
    """The most frequent path above the floor, and the expected number of accepted tokens."""
    path, chance, score = [], Fraction(1), Fraction(0)
    while len(path) < most:
        going = [t for t in texts if t[: len(path)] == path and len(t) > len(path)]
        if not going:
            break
        # Of equally frequent tokens the first one seen, which a Counter keeps first.
        token, count = Counter(t[len(path)] for t in going).most_common(1)[0]
        share = Fraction(count, len(going))
        if share < FLOOR:
            break
        chance *= share
        score += chance
        path.append(token)
    return path, score


def matches(text, stores):
    """Each match length's score, path and candidates, in the order in which they are preferred."""
    sizes = [(size, store) for size in range(LONGEST, 0, -1) for store in stores]
    for size, store in sizes:
        most = min(floor(FACTOR * size), K)
        texts = followers(text, size, store)
        path, score = promising(texts, most)
        yield score, path, [t[:most] for t in texts]


def best(text, stores):
    """Those whose score is the best, to within rounding."""
    every = list(matches(text, stores))
    top = max(score for score, *_ in every)
    return top, [match for match in every if top - match[0] < 1e-5]


def kind_of(score):
    return int(score > 0) + sum(score > bound for bound in SCORES)


@pytest.mark.parametrize("store", [None, STORE], ids=["own", "store"])
def test_the_match_that_promises_most_makes_the_draft_and_its_length(store):
    texts, stores = random_texts(2, VOCAB - 2 * (store is None)), [None, store][: 1 + bool(store)]
    draft = propose(suffix(store=store), texts)
    decided = 0
    for row, text in enumerate(texts):
        score, tops = best(text, stores)
        assert drafted(draft, row) in [path for _, path, _ in tops]
        decided += len(tops) == 1
        if all(score == bound or abs(score - bound) > 1e-5 for bound in SCORES):
            assert draft.kind[row] == kind_of(score)
    assert decided > 50
    assert set(draft.valid.sum(1).tolist()) == {0, 1, 2, 3, 4}
    assert (np.sort(draft.valid)[:, ::-1] == draft.valid).all()
    assert (draft.parent == np.arange(K)).all()


@pytest.mark.parametrize(
    ("text", "draft", "kind"),
    [
        ([1, 2, 3, 4], [], 0),  # nothing has been here before
        ([7], [], 0),
        ([1, 2, 3, 1], [2], 1),  # one token matched, so one is drafted
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5], 3),
        ([4, 1, 2, 3, 9, 8, 7, 6, 1, 2, 3], [9, 8, 7, 6], 3),
        ([1, 5, 1, 6, 1, 7, 1], [], 0),  # each token followed once in three: below the floor
        ([1, 5, 1, 6, 1, 5, 1], [6, 1, 5, 1], 3),  # but three tokens together once, with 6
    ],
    ids=str,
)
def test_texts_made_by_hand(text, draft, kind):
    found = propose(suffix(), [text])
    assert (drafted(found, 0), found.kind.tolist()) == (draft, [kind])


def test_a_tree_holds_the_winners_most_frequent_continuations():
    texts = random_texts(3, VOCAB - 2)
    draft = propose(suffix(num_nodes=6), texts)
    for row, text in enumerate(texts):
        nodes = [()]
        for token, above in zip(drafted(draft, row), draft.parent[row], strict=False):
            nodes.append((*nodes[above], token))
        _, tops = best(text, [None])
        assert nodes[1:] in [heaviest(found, [1] * len(found), 6) for *_, found in tops]
    assert draft.valid.sum(1).max() == 6


def test_the_caps_and_the_finished_rows_are_kept():
    texts = [[4, 1, 2, 3, 9, 8, 7, 6, 1, 2, 3]] * 6
    active, cap = [True] * 5 + [False], [0, 1, 2, 4, 9, 9]
    found = propose(suffix(), texts, active, cap)
    assert found.valid.sum(1).tolist() == [0, 1, 2, 4, 4, 0]
    assert found.kind.tolist() == [3] * 6


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"draft_length": 0}, "draft_length"),
        ({"max_match": 0}, "max_match"),
        ({"num_places": 0}, "num_places"),
        ({"floor": 1.5}, "floor: must be a probability"),
        ({"floor": float("nan")}, "floor: must be a probability"),
        ({"factor": 0.1}, "factor: allows no token"),
        ({"num_nodes": 2}, "num_nodes: must be at least draft_length, got 2 and 8"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Suffix(**fields)


def test_a_store_of_another_vocabulary_is_refused():
    target = TableLM.random(jax.random.key(0), 4)
    Suffix().validate(target)
    Suffix(store=SMALL).validate(target)
    with pytest.raises(ValueError, match="store: it was built for 5 tokens, the target has 4"):
        Suffix(store=STORE).validate(target)
