"""Trees drawn by hand: depths, ancestors and paths from the parent pointers."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree

#        0
#      1   2
#     3 4  5
#     6
BUSHY = [0, 0, 1, 1, 2, 3]
CHAIN = [0, 1, 2, 3, 4, 5]
STAR = [0, 0, 0, 0, 0, 0]
PARENTS = jnp.asarray([BUSHY, CHAIN, STAR])


def line_of(parent, node):
    """Nodes from depth 1 down to ``node``, in plain Python."""
    line = []
    while node:
        line.append(node)
        node = parent[node - 1]
    return line[::-1]


def test_depths_of_hand_made_trees():
    assert tree.depths(PARENTS).tolist() == [
        [0, 1, 1, 2, 2, 2, 3],
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 1, 1, 1, 1, 1],
    ]


def test_ancestors_of_a_hand_made_tree():
    seen = tree.ancestors(PARENTS)
    assert [np.flatnonzero(row).tolist() for row in seen[0]] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 4],
        [0, 2, 5],
        [0, 1, 3, 6],
    ]


def test_the_ancestors_of_a_chain_are_the_causal_mask():
    np.testing.assert_array_equal(tree.ancestors(PARENTS)[1], np.tri(7, dtype=bool))


def test_paths_of_a_hand_made_tree():
    assert tree.paths(PARENTS, 3)[0].tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [2, 0, 0],
        [1, 3, 0],
        [1, 4, 0],
        [2, 5, 0],
        [1, 3, 6],
    ]


def test_a_path_is_cut_at_the_depth_asked_for():
    np.testing.assert_array_equal(tree.paths(PARENTS, 2), tree.paths(PARENTS, 6)[..., :2])


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_agree_with_a_walk_up_the_parents(seed):
    generator = np.random.default_rng(seed)
    parents = np.stack([generator.integers(0, i + 1, 8) for i in range(7)], axis=1)
    paths, depths = tree.paths(jnp.asarray(parents), 7), tree.depths(jnp.asarray(parents))
    for row, parent in enumerate(parents):
        for node in range(8):
            line = line_of(parent, node)
            assert depths[row, node] == len(line)
            assert paths[row, node].tolist() == line + [0] * (7 - len(line))


def test_tokens_follow_a_path_and_its_padding_is_zero():
    tokens = jnp.asarray([[10, 20, 30, 40, 50, 60]] * 2)
    path = jnp.asarray([[[1, 3, 6], [2, 5, 0]], [[1, 2, 3], [0, 0, 0]]])
    assert tree.path_tokens(tokens, path).tolist() == [
        [[10, 30, 60], [20, 50, 0]],
        [[10, 20, 30], [0, 0, 0]],
    ]
    assert tree.path_tokens(tokens, path[:, 0]).tolist() == [[10, 30, 60], [10, 20, 30]]


def test_a_chain_by_its_parents():
    assert tree.chain_parents(2, 3).tolist() == [[0, 1, 2]] * 2


def test_an_empty_draft_has_a_root_alone():
    none = tree.chain_parents(2, 0)
    assert tree.depths(none).tolist() == [[0], [0]]
    assert tree.paths(none, 0).shape == (2, 1, 0)


def test_what_lies_below_an_invalid_node_cannot_be_reached():
    parent = jnp.asarray([[0, 0, 1, 2]], jnp.int32)
    valid = jnp.asarray([[True, False, True, True]])
    assert tree.reachable(parent, valid).tolist() == [[True, False, True, False]]
