"""Typical acceptance: its rule, that temperature 0 is exact, and that temperature 1 is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_drafters import Branching

from specjax.api import Decoder
from specjax.drafters import Plain
from specjax.loop import Program
from specjax.testing import TableLM
from specjax.testing.exact import emitted_law, product_law, random_laws
from specjax.testing.statistics import decode, sampling_values
from specjax.types import Draft
from specjax.verify import Coupled, Typical

ROWS, N, V = 300, 6, 5
TABLE = TableLM.random(jax.random.key(0), V)


def threshold(p, epsilon=0.09, delta=0.3):
    entropy = -sum(x * np.log(x) for x in p if x > 0)
    return min(epsilon, delta * np.exp(-entropy))


def longest_typical_path(tokens, parent, valid, p, **values):
    """The rule in words: go through the nodes, keep the first of the deepest ones."""
    lines = {0: []}
    for node, (token, above, allowed) in enumerate(zip(tokens, parent, valid, strict=True), 1):
        if allowed and above in lines and p[above][token] > threshold(p[above], **values):
            lines[node] = [*lines[above], node]
    return max(lines.values(), key=len)


def random_trees(seed):
    """Trees, tokens and laws of many rows; some laws allow nothing at all."""
    generator = np.random.default_rng(seed)
    parent = np.stack([generator.integers(0, node + 1, ROWS) for node in range(N)], axis=1)
    p = generator.exponential(size=(ROWS, N + 1, V)) ** 3
    p *= generator.random(p.shape) < 0.8
    total = p.sum(-1, keepdims=True)
    p = np.where(total > 0, p / np.where(total > 0, total, 1), 0)
    p[generator.random((ROWS, N + 1)) < 0.05] = 0
    tokens, valid = generator.integers(0, V, (ROWS, N)), generator.random((ROWS, N)) < 0.9
    return tokens.astype(np.int32), parent.astype(np.int32), valid, p.astype(np.float32)


def accept(verifier, tokens, parent, valid, p):
    draft = Draft(jnp.asarray(tokens), jnp.asarray(parent), jnp.asarray(valid))
    verdict = _accept(verifier, draft, jnp.asarray(p, jnp.float32))
    pairs = zip(np.asarray(verdict.path), np.asarray(verdict.num_accepted), strict=True)
    return [path[:num].tolist() for path, num in pairs], np.asarray(verdict.last)


@jax.jit
def _accept(verifier, draft, p):
    return verifier.accept(draft, p, jnp.zeros(draft.tokens.shape, jnp.float32))


@pytest.mark.parametrize("values", [{}, {"epsilon": 0.4, "delta": 0.9}], ids=str)
def test_random_trees_agree_with_the_rule_in_words(values):
    tokens, parent, valid, p = random_trees(seed=1)
    paths, last = accept(Typical(**values), tokens, parent, valid, p)
    expected = [
        longest_typical_path(*row, **values)
        for row in zip(tokens, parent, valid, p.astype(np.float64), strict=True)
    ]
    assert paths == expected
    ends = [path[-1] if path else 0 for path in paths]
    np.testing.assert_array_equal(last, p[np.arange(ROWS), ends])
    assert {len(path) for path in paths} >= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("p", "least"),
    [
        ([0.5, 0.5, 0, 0, 0], 0.09),  # 0.3 exp(-H) = 0.15 is more than epsilon
        ([0.2] * 5, 0.06),
        ([0, 0, 1, 0, 0], 0.09),
        ([0.1, 0.1, 0.1, 0.1, 0.6], 0.3 * 0.1**0.4 * 0.6**0.6),
        ([0] * 5, 0.09),  # a dead end: nothing is as likely as that
    ],
    ids=str,
)
def test_thresholds_worked_by_hand(p, least):
    found = Typical().thresholds(jnp.asarray(p, jnp.float32))
    np.testing.assert_allclose(found, least, rtol=1e-6)


def test_an_unlikely_token_passes_where_the_target_is_unsure_and_fails_where_it_is_sure():
    tokens, parent = [[1], [1]], [[0], [0]]
    unsure, sure = [0.3, 0.08, 0.22, 0.2, 0.2], [0.92, 0.08, 0, 0, 0]
    p = [[unsure, unsure], [sure, sure]]
    paths, _ = accept(Typical(), tokens, parent, [[True], [True]], p)
    assert paths == [[1], []]


def test_of_equally_deep_paths_the_first_in_node_order_wins():
    p = np.full((1, 5, V), 1 / V)
    paths, _ = accept(Typical(), [[0, 1, 2, 3]], [[0, 0, 2, 1]], [[True] * 4], p)
    assert paths == [[2, 3]]


def test_a_dead_end_accepts_nothing_below_it_and_says_so():
    p = np.full((1, 3, V), 1 / V)
    p[0, 1] = 0
    paths, last = accept(Typical(), [[0, 1]], [[0, 1]], [[True, True]], p)
    assert paths == [[1]]
    assert not last.any()


def test_a_point_mass_accepts_the_target_s_own_tokens_and_no_other():
    tokens, parent, valid, p = random_trees(seed=2)
    best = p.argmax(-1)
    paths, last = accept(Typical(), tokens, parent, valid, np.eye(V)[best])
    for row, path in enumerate(paths):
        own = best[row, [0, *path]]
        assert tokens[row][np.array(path, int) - 1].tolist() == own[:-1].tolist()
        assert last[row].argmax() == own[-1]
        children = valid[row] & (parent[row] == ([0, *path][-1])) & (tokens[row] == own[-1])
        assert not children.any()
    assert max(map(len, paths)) >= 2


def test_temperature_0_gives_the_tokens_of_plain_decoding():
    drafter = Branching(TABLE.table + 0.5 * jax.random.normal(jax.random.key(1), (V,) * 3))
    prompts, values = [[1], [0, 3, 2], [4, 4]], sampling_values(3, 0.0)
    ours = decode(Program(TABLE, drafter, Typical()), prompts, 12, values=values)
    plain = decode(Program(TABLE, Plain(), Coupled()), prompts, 12, values=values)
    np.testing.assert_array_equal(ours.context.tokens, plain.context.tokens)
    assert (ours.stats.rounds < plain.stats.rounds).all()


def test_temperature_1_is_lossy_by_as_much_as_the_rule_says():
    generator = np.random.default_rng(0)
    (p, *_), (q,) = laws = random_laws(generator, 3, 2), random_laws(generator, 3, 1)
    typical = p > threshold(p)
    assert 0 < typical.sum() < 3
    with jax.enable_x64(True):
        law = emitted_law(Typical(), [0], *laws)
    first = q * typical + q[~typical].sum() * p
    np.testing.assert_allclose(law.sum(-1), first, atol=1e-12)
    assert np.abs(law - product_law(laws[0])).max() > 0.05
    assert not Typical.exact


def test_the_result_of_a_decoder_says_that_it_is_lossy():
    result = Decoder(TABLE, Branching(TABLE.table), verifier=Typical()).generate(
        [1, 2], max_new_tokens=4, seed=0
    )
    assert not result.exact
    assert len(result.tokens[0]) == 4


def test_other_values_are_no_retrace():
    batch = random_trees(seed=3)
    accept(Typical(), *batch)
    before = _accept._cache_size()
    strict, _ = accept(Typical(0.5, 0.9), *batch)
    loose, _ = accept(Typical(0.001, 0.001), *batch)
    assert _accept._cache_size() == before
    assert sum(map(len, strict)) < sum(map(len, loose))


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), True, "0.1"], ids=repr)
@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_values_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: must be a number between 0 and 1"):
        Typical(**{name: value})
