"""Draft trees against a trie of plain dicts, on random candidates, and one made by hand."""

import jax
import numpy as np
import pytest

from specjax import trie

ROWS, R, K = 300, 7, 4


def reference(candidates, weights):
    """Every prefix with its weight and the first candidate that has it."""
    nodes = {}
    for number, (text, weight) in enumerate(zip(candidates, weights, strict=True)):
        for depth in range(1, len(text) + 1 if weight else 1):
            total, first = nodes.get(tuple(text[:depth]), (0.0, number))
            nodes[tuple(text[:depth])] = total + weight, first
    return nodes


def heaviest(candidates, weights, num):
    """The ``num`` nodes to keep, in the order in which a draft holds them."""
    nodes = reference(candidates, weights)

    def rank(node):
        return -nodes[node][0], len(node), nodes[node][1]

    kept = sorted(nodes, key=rank)[:num]
    return sorted(kept, key=lambda node: (len(node), *rank(node)))


def random_candidates(vocab_size, seed):
    """Ragged candidates of whole weights, a few of them 0."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, vocab_size, (ROWS, R, K)).astype(np.int32)
    length = draw.integers(0, K + 1, (ROWS, R))
    weight = draw.integers(0, 4, (ROWS, R)).astype(np.float32)
    return tokens, np.arange(K) < length[..., None], weight


def as_lists(tokens, valid, weight):
    for row, keep, of in zip(tokens, valid, weight, strict=True):
        yield [t[k].tolist() for t, k in zip(row, keep, strict=True)], of.tolist()


merge = jax.jit(trie.merge, static_argnames="num_nodes")
heaviest_path = jax.jit(trie.heaviest_path)


@pytest.mark.parametrize("num", [6, R * K + 3])
@pytest.mark.parametrize("vocab_size", [2, 5])
def test_the_heaviest_prefixes_are_kept_level_by_level(num, vocab_size):
    case = random_candidates(vocab_size, seed=vocab_size)
    tokens, parent, valid, weight = map(np.asarray, merge(*case, num_nodes=num))
    for row, (candidates, weights) in enumerate(as_lists(*case)):
        expected = heaviest(candidates, weights, num)
        count = len(expected)
        assert valid[row].tolist() == [True] * count + [False] * (num - count)
        found = [()]
        for token, above in zip(tokens[row, :count], parent[row], strict=False):
            found.append((*found[above], int(token)))
        assert found[1:] == expected
        nodes = reference(candidates, weights)
        assert weight[row, :count].tolist() == [nodes[node][0] for node in expected]
        assert not parent[row, count:].any()
        assert not weight[row, count:].any()


@pytest.mark.parametrize("vocab_size", [2, 5])
def test_the_heaviest_path_goes_to_the_heaviest_child_each_time(vocab_size):
    case = random_candidates(vocab_size, seed=10 + vocab_size)
    tokens, valid, share = map(np.asarray, heaviest_path(*case))
    for row, (candidates, weights) in enumerate(as_lists(*case)):
        nodes, path, shares = reference(candidates, weights), (), []
        while True:
            children = [n for n in nodes if n[:-1] == path]
            if not children:
                break
            path = min(children, key=lambda n: (-nodes[n][0], nodes[n][1]))
            shares.append(nodes[path][0] / sum(nodes[n][0] for n in children))
        assert tokens[row][valid[row]].tolist() == list(path)
        assert valid[row].tolist() == [True] * len(path) + [False] * (K - len(path))
        np.testing.assert_allclose(share[row, : len(path)], shares, rtol=1e-6)


def test_no_parent_is_lighter_than_its_child_whatever_the_rounding():
    draw = np.random.default_rng(0)
    tokens, valid, _ = random_candidates(2, seed=3)
    weight = (10.0 ** draw.uniform(-9, 9, (ROWS, R))).astype(np.float32)
    _, parent, valid, weight = map(np.asarray, merge(tokens, valid, weight, num_nodes=6))
    padded = np.pad(weight, ((0, 0), (1, 0)), constant_values=np.inf)
    above = np.take_along_axis(padded, parent, axis=1)
    assert (above >= weight)[valid].all()
    inside = np.pad(valid, ((0, 0), (1, 0)), constant_values=True)
    assert np.take_along_axis(inside, parent, axis=1)[valid].all()


def test_of_equally_heavy_nodes_the_shallower_and_the_earlier_stay():
    texts = np.zeros((ROWS, R, K), np.int32)
    texts[0, :3, :2] = [[7, 8], [5, 6], [5, 4]]
    weight = np.zeros((ROWS, R), np.float32)
    weight[0, :3] = [2, 1, 1]
    tokens, parent, _, weight = merge(texts, texts > 0, weight, num_nodes=6)
    assert tokens[0].tolist() == [7, 5, 8, 6, 4, 0]
    assert parent[0].tolist() == [0, 0, 1, 2, 2, 0]
    assert weight[0].tolist() == [2, 2, 2, 1, 1, 0]
