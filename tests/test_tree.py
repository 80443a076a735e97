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


# Fixed topologies.


@pytest.mark.parametrize("branching", [(1,), (3,), (1, 1, 1), (3, 2, 1), (2, 3), (1, 4, 2)])
def test_a_topology_by_branching_has_so_many_children_at_each_level(branching):
    topology = tree.from_branching(branching)
    levels = [len(line_of(topology, node)) for node in range(len(topology) + 1)]
    assert levels == sorted(levels)
    for node, level in enumerate(levels):
        want = branching[level] if level < len(branching) else 0
        assert topology.count(node) == want
    assert tree.depth_of(topology) == len(branching)


PATHS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1)]


def test_a_topology_by_paths_holds_these_and_no_others():
    topology = tree.from_paths(PATHS)
    found = set()
    for node in range(1, len(topology) + 1):
        line = line_of(topology, node)
        ranks = []
        for above, below in zip([0, *line], line, strict=False):
            siblings = [i for i, parent in enumerate(topology, start=1) if parent == above]
            ranks.append(siblings.index(below))
        found.add(tuple(ranks))
    assert found == set(PATHS)


def test_the_order_in_which_paths_are_named_does_not_matter():
    generator = np.random.default_rng(0)
    for _ in range(5):
        shuffled = [PATHS[i] for i in generator.permutation(len(PATHS))]
        assert tree.from_paths(shuffled) == tree.from_paths(PATHS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tree.from_paths([(0,), (1, 0)]), r"paths: \(1, 0\) comes without \(1,\)"),
        (lambda: tree.from_paths([(0,), (0, 1)]), r"paths: \(0, 1\) comes without \(0, 0\)"),
        (lambda: tree.from_paths([(0,), (0,)]), r"paths: \(0,\) comes twice"),
        (lambda: tree.from_paths([()]), r"paths: must be tuples of ranks"),
        (lambda: tree.from_paths([(-1,)]), r"paths: must be tuples of ranks"),
        (lambda: tree.from_branching(()), "branching: must be"),
        (lambda: tree.from_branching((2, 0)), r"branching: must be .* got \(2, 0\)"),
        (lambda: tree.parents((0, 2), 1), r"topology: the parent of node 2 .* 0\.\.1, got 2"),
        (lambda: tree.depth_of((0, True)), "topology: the parent of node 2"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_topology_is_the_same_in_every_row():
    assert tree.parents((0, 0, 1), 2).tolist() == [[0, 0, 1]] * 2
    assert tree.parents((), 2).shape == (2, 0)
    assert tree.depth_of(()) == 0


def walked(draft, parent, valid, tokens):
    """The nodes that ``tokens`` lead along, in plain Python."""
    line = [0]
    for token in tokens:
        fits = [
            node
            for node in range(1, len(draft) + 1)
            if valid[node - 1] and parent[node - 1] == line[-1] and draft[node - 1] == token
        ]
        if not fits:
            break
        line.append(fits[0])
    return line[1:]


@pytest.mark.parametrize("seed", range(3))
def test_following_random_trees_agrees_with_a_walk_in_plain_python(seed):
    generator = np.random.default_rng(seed)
    rows, num, depth = 256, 9, 4
    parent = np.stack([generator.integers(0, i + 1, rows) for i in range(num)], axis=1)
    draft = generator.integers(0, 3, (rows, num))  # siblings of one token occur
    valid = generator.random((rows, num)) < 0.9
    tokens = generator.integers(0, 3, (rows, depth))
    arrays = (jnp.asarray(x, jnp.int32) for x in (draft, parent))
    path, found = tree.follow(*arrays, jnp.asarray(valid), jnp.asarray(tokens, jnp.int32))
    lines = [walked(*row) for row in zip(draft, parent, valid, tokens, strict=True)]
    assert found.tolist() == [len(line) for line in lines]
    assert path.tolist() == [line + list(range(len(line) + 1, depth + 1)) for line in lines]
    assert {len(line) for line in lines} >= {0, 1, 2, 3}


def test_an_empty_tree_is_followed_nowhere():
    none, tokens = jnp.zeros((2, 0), jnp.int32), jnp.asarray([[1, 2]] * 2)
    path, num = tree.follow(none, none, none.astype(bool), tokens)
    assert num.tolist() == [0, 0]
    assert path.tolist() == [[1, 2]] * 2
