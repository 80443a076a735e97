"""Retrieval against a plain Python reference: matches in a store and in the text, and exactness."""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from test_trie import heaviest, reference

from specjax import datastore
from specjax.drafters.retrieval import Retrieval
from specjax.testing import TableLM
from specjax.types import Context

K, N, L, ROWS, VOCAB, LONGEST, R = 3, 7, 28, 200, 5, 3, 32
STORE = datastore.build(
    [np.random.default_rng(n).integers(0, VOCAB, 40) for n in range(3)], vocab_size=VOCAB
)
SMALL = datastore.build([[0, 1, 2, 3, 0, 1], [1, 0, 1, 2, 2]], vocab_size=4)


def retrieval(num_nodes=K, **fields):
    return Retrieval(STORE, K, num_nodes, max_match=LONGEST, num_places=R, **fields)


def candidates(text, store, longest, own):
    """What followed every match, with its length: the text's, the best first, then the store's."""
    found = []
    for place in range(len(text) - 1) if own else ():
        size = max(n for n in range(longest + 1) if ends_alike(text[: place + 1], text, n))
        found += [(size, place)] if size else []
    answer = [(text[p + 1 : p + 1 + K], n) for n, p in sorted(found, reverse=True)]
    tokens = np.asarray(store.tokens).tolist()
    for size in range(min(longest, len(text)), 0, -1):
        places = [p for p in np.asarray(store.order) if tokens[p : p + size] == text[-size:]]
        for p in places:
            after = [*tokens[p + size : p + size + K], -1]
            answer.append((after[: after.index(-1)], size))
        if places:
            break
    return answer


def ends_alike(left, right, n):
    return n == 0 or (len(left) >= n and left[-n:] == right[-n:])


def weighed(text, drafter):
    """The candidates that count, with weights that put a longer match before all shorter ones."""
    found = candidates(text, STORE, drafter.max_match, drafter.own)
    most = max((n for _, n in found), default=0)
    found = [(tokens, n) for tokens, n in found if n >= drafter.min_match]
    places = R * (1 + drafter.own)
    weights = [Fraction(1, (2 * places) ** (most - n)) for _, n in found]
    return [tokens for tokens, _ in found], weights, most if found else 0


def path(texts, weights):
    """The most frequent token each time."""
    nodes, way = reference(texts, weights), ()
    while children := [n for n in nodes if n[:-1] == way]:
        way = min(children, key=lambda n: (-nodes[n][0], nodes[n][1]))
    return list(way)


class Limits:
    """The two fields of ``Draw`` that drafts copied from texts read."""

    def __init__(self, active, cap):
        self.active, self.cap = active, cap


@jax.jit
def _propose(drafter, tokens, length, active, cap):
    context = Context(tokens, length)
    return drafter.propose(None, (), (), context, Limits(active, cap), width=drafter.depth)[0]


def propose(drafter, texts, active=True, cap=8):
    """Drafts of a batch of texts, in which the first token of each fills what is beyond it."""
    tokens = np.zeros((ROWS, L), np.int32)
    for row, text in enumerate(texts):
        tokens[row] = text + text[:1] * (L - len(text))
    length = np.resize([len(t) for t in texts], ROWS).astype(np.int32)
    active, cap = np.resize(active, ROWS), np.resize(cap, ROWS).astype(np.int32)
    draft = _propose(drafter, *map(jnp.asarray, (tokens, length, active, cap)))
    assert draft.probs is None
    return jax.tree.map(lambda x: np.asarray(x)[: len(texts)], draft)


def random_texts(seed, vocab_size=VOCAB):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab_size, n).tolist() for n in draw.integers(1, L, ROWS)]


def drafted(draft, row):
    return draft.tokens[row][draft.valid[row]].tolist()


@pytest.mark.parametrize("fields", [{}, {"own": False, "min_match": 1}], ids=str)
def test_chains_are_the_paths_of_the_most_frequent_tokens(fields):
    drafter, texts = retrieval(**fields), random_texts(0)
    draft = propose(drafter, texts)
    for row, text in enumerate(texts):
        found, weights, most = weighed(text, drafter)
        assert drafted(draft, row) == path(found, weights)
        assert draft.kind[row] == most.bit_length()
    assert (draft.parent == np.arange(K)).all()
    assert (np.sort(draft.valid)[:, ::-1] == draft.valid).all()


def test_trees_hold_the_most_frequent_continuations_level_by_level():
    drafter, texts = retrieval(N, min_match=1), random_texts(1)
    draft = propose(drafter, texts)
    for row, text in enumerate(texts):
        found, weights, most = weighed(text, drafter)
        nodes = [()]
        for token, above in zip(drafted(draft, row), draft.parent[row], strict=False):
            nodes.append((*nodes[above], token))
        assert nodes[1:] == heaviest(found, weights, N)
        assert draft.kind[row] == most.bit_length()
        assert draft.valid[row].tolist() == sorted(draft.valid[row], reverse=True)
    assert draft.valid.sum(1).max() == N


def test_the_caps_and_the_finished_rows_are_kept():
    texts = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]] * 6
    active, cap = [True] * 5 + [False], [0, 1, 2, 3, 9, 9]
    chain = propose(retrieval(), texts, active, cap)
    assert chain.valid.sum(1).tolist() == [0, 1, 2, 3, 3, 0]
    tree = propose(retrieval(N, min_match=1), texts, active, cap)
    levels = [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0}]
    for parent, valid, level in zip(tree.parent, tree.valid, levels, strict=True):
        depth = [0]
        for above in parent[valid]:
            depth.append(depth[above] + 1)
        assert set(depth) == level
    assert (chain.kind == chain.kind[0]).all()  # what was matched, not what may be drafted


def test_a_longer_match_outweighs_any_number_of_shorter_ones():
    text = [1, 2, 3, *[9, 3, 4] * 6, 1, 2, 3]
    store = datastore.build([[0] * 40], vocab_size=10)
    chain = propose(dataclasses.replace(retrieval(), store=padded(store)), [text])
    assert drafted(chain, 0) == [9, 3, 4]
    text = [1, 2, 3, 7, *[9, 3, 4] * 6, 1, 2, 3]
    chain = propose(dataclasses.replace(retrieval(), store=padded(store)), [text])
    assert drafted(chain, 0) == [7, 9, 3]


def padded(store):
    """As large as STORE, for the program that is compiled already."""
    tokens = np.pad(store.tokens, (0, STORE.tokens.size - store.tokens.size), constant_values=-1)
    order = jnp.asarray(datastore.suffix_order(tokens, 16))
    return dataclasses.replace(STORE, tokens=jnp.asarray(tokens), order=order)


def test_a_target_of_another_vocabulary_is_refused():
    target = TableLM.random(jax.random.key(0), 4)
    Retrieval(SMALL).validate(target)
    with pytest.raises(ValueError, match="store: it was built for 5 tokens, the target has 4"):
        retrieval().validate(target)
    with pytest.raises(ValueError, match="store: must be a Datastore, got str"):
        Retrieval("store").validate(target)
    with pytest.raises(ValueError, match="max_match: the store is sorted by 16 tokens, got 17"):
        Retrieval(SMALL, max_match=17).validate(target)


def test_the_token_map_decides_where_it_is_known():
    ours, theirs = byte_tokenizer([], [], "abcd"), byte_tokenizer([], [], "dcba")
    store = dataclasses.replace(SMALL, fingerprint=datastore.fingerprint_of(ours.vocabulary))

    class Target:
        vocab_size, tokenizer = 6, ours  # padded: that alone is no other vocabulary

    Retrieval(store).validate(Target)
    Target.tokenizer = theirs
    with pytest.raises(ValueError, match="store: it was built with another token map"):
        Retrieval(store).validate(Target)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"draft_length": 0}, "draft_length"),
        ({"max_match": 0}, "max_match"),
        ({"min_match": 9}, "min_match: must be at most max_match"),
        ({"num_places": 0}, "num_places"),
        ({"num_nodes": 3}, "num_nodes: must be at least draft_length, got 3 and 4"),
        ({"num_nodes": 4.5}, "num_nodes: must be an int"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Retrieval(SMALL, **fields)
