"""Prompt lookup against a plain Python reference, on random texts and on texts made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import NGram
from specjax.matches import longest_match
from specjax.types import Context

K, L, ROWS = 4, 28, 400


def best_match(text, longest):
    """Length and end of the longest earlier copy of the text's end; of equals the latest."""
    for num in range(min(longest, len(text) - 1), 0, -1):
        for end in range(len(text) - 2, num - 2, -1):
            if text[end - num + 1 : end + 1] == text[len(text) - num :]:
                return num, end
    return 0, 0


def continuation(text, drafter):
    """What should be drafted: the tokens after the match, going round at the text's end."""
    num, end = best_match(text, drafter.max_ngram)
    if num < drafter.min_ngram:
        return []
    loop = text[end + 1 :]
    return [loop[i % len(loop)] for i in range(drafter.draft_length)]


class Limits:
    """The two fields of ``Draw`` that prompt lookup reads."""

    def __init__(self, active, cap):
        self.active, self.cap = jnp.asarray(active), jnp.asarray(cap, jnp.int32)


def propose(drafter, texts, active=True, cap=K):
    """Drafts for a batch of texts; what lies beyond each text is the text's own last token."""
    tokens = np.full((ROWS, L), 1, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
        tokens[row, len(text) :] = text[-1]
    length = np.resize([len(t) for t in texts], ROWS)
    limits = np.resize(active, ROWS), np.resize(cap, ROWS)
    draft = _propose(drafter, jnp.asarray(tokens), jnp.asarray(length, jnp.int32), *limits)
    pairs = zip(np.asarray(draft.tokens), np.asarray(draft.valid), strict=True)
    assert draft.probs is None
    return [row[keep].tolist() for row, keep in pairs][: len(texts)]


@jax.jit
def _propose(drafter, tokens, length, active, cap):
    context = Context(tokens, length)
    return drafter.propose(None, (), (), context, Limits(active, cap), width=K)[0]


def random_texts(vocab_size, seed):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, L, ROWS)
    return [generator.integers(0, vocab_size, n).tolist() for n in lengths]


@pytest.mark.parametrize("drafter", [NGram(K), NGram(K, max_ngram=4, min_ngram=2)], ids=str)
@pytest.mark.parametrize("vocab_size", [2, 5])
def test_random_ragged_texts_agree_with_the_reference(drafter, vocab_size):
    texts = random_texts(vocab_size, seed=vocab_size)
    assert propose(drafter, texts) == [continuation(t, drafter) for t in texts]


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 9, 7, 3, 5, 2, 3], [9, 7, 3, 5]),  # the longer match wins over the later one
        ([3, 8, 4, 4, 3, 9, 5, 5, 3], [9, 5, 5, 3]),  # of equally long ones the later wins
        ([6, 1, 2, 1, 2], [1, 2, 1, 2]),  # a loop goes on as a loop
        ([5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),  # never its own end
        ([7], []),
    ],
    ids=str,
)
def test_texts_made_by_hand(text, draft):
    assert propose(NGram(K), [text]) == [draft]


def test_a_match_shorter_than_the_least_is_no_match():
    texts = [[1, 9, 9, 9, 9, 1], [2, 1, 5, 6, 2, 1]]
    assert propose(NGram(K, max_ngram=4, min_ngram=2), texts) == [[], [5, 6, 2, 1]]


def test_the_caps_and_the_finished_rows_are_kept():
    drafts = propose(NGram(K), [[1, 2, 1, 2]] * 8, active=[True] * 6 + [False] * 2, cap=range(8))
    assert [len(d) for d in drafts] == [0, 1, 2, 3, 4, 4, 0, 0]


def test_a_match_says_where_it_ends():
    context = Context(jnp.asarray([[4, 1, 2, 3, 1, 2, 0], [0] * 7]), jnp.asarray([6, 1]))
    matched, at = longest_match(context, 3)
    assert (matched.tolist(), at.tolist()) == ([2, 0], [2, 0])


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3), (-1, 3)])
def test_ngram_lengths_that_make_no_sense_are_refused(lengths):
    least, most = lengths
    with pytest.raises(ValueError, match="min_ngram"):
        NGram(K, max_ngram=most, min_ngram=least)


@pytest.mark.parametrize("draft_length", [0, -1, 1.5, True, "4", None])
def test_a_draft_length_below_one_is_refused(draft_length):
    with pytest.raises(ValueError, match="draft_length"):
        NGram(draft_length)
