"""L0: what the shipped verifiers emit, enumerated over all drafts and coins in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree
from specjax.draw import sibling_laws
from specjax.testing.exact import Shape, emitted_law, every_sequence, product_law, random_laws
from specjax.types import Draft, Verdict
from specjax.verify import Block, Coupled, Token
from specjax.verify.token import node_law, residual

CHAIN = [0, 1, 2]
BINARY = [0, 0, 1, 1, 2, 2]
V = 3
SIBLINGS = pytest.mark.parametrize(
    "without_replacement", [False, True], ids=["independent", "without-replacement"]
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def error(verifier, parent, p, q, **kwargs):
    law = emitted_law(verifier, parent, p, q, **kwargs)
    return np.abs(law - product_law(p)).max()


def laws(kind, depth, seed=0):
    generator = np.random.default_rng(seed)
    p = random_laws(generator, V, depth + 1, zeros=0.4 if kind == "zeros" else 0.0)
    q = random_laws(generator, V, depth, zeros=0.4 if kind == "zeros" else 0.0)
    if kind == "same":
        q = p[:depth]
    if kind == "disjoint":
        p = [np.roll(np.eye(V)[np.zeros(x.shape[:-1], int)], 1, -1) * 0.98 + 0.02 / V for x in p]
        q = [np.eye(V)[np.zeros(x.shape[:-1], int)] * 0.98 + 0.02 / V for x in q]
    return p, q


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("kind", ["random", "zeros", "same", "disjoint"])
def test_chain_emits_the_target_law(verifier, kind):
    p, q = laws(kind, 3)
    assert error(verifier, CHAIN, p, q) < 1e-12


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_point_mass_drafts_emit_the_target_law(verifier):
    p, _ = laws("random", 3)
    assert error(verifier, CHAIN, p, None, point_mass=np.array([2, 0, 1], np.int32)) < 1e-12


@SIBLINGS
@pytest.mark.parametrize("kind", ["random", "zeros", "same", "disjoint"])
def test_a_binary_tree_emits_the_target_law(kind, without_replacement):
    p, q = laws(kind, 2)
    assert error(Token(), BINARY, p, q, without_replacement=without_replacement) < 1e-12


@SIBLINGS
@pytest.mark.parametrize("parent", [[0, 0, 0, 0], [0, 0, 1, 2, 1]], ids=str)
def test_trees_of_other_shapes_emit_the_target_law(parent, without_replacement):
    p, q = laws("zeros", 2 if max(parent) else 1, seed=3)
    assert error(Token(), parent, p, q, without_replacement=without_replacement) < 1e-12


@pytest.mark.parametrize(
    "tokens", [[2, 0, 1, 2, 0, 1], [1, 1, 0, 2, 0, 0], [0, 1, 0, 1, 0, 1]], ids=str
)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_a_binary_tree_of_point_masses_emits_the_target_law(kind, tokens):
    p, _ = laws(kind, 2)
    assert error(Token(), BINARY, p, None, point_mass=np.array(tokens, np.int32)) < 1e-12


def test_laws_without_replacement_are_those_that_the_loop_records():
    tokens = every_sequence(V, 3)
    (q,) = random_laws(np.random.default_rng(4), V, 1)
    logits = jnp.broadcast_to(jnp.log(q), (len(tokens), 1, V))
    recorded = sibling_laws(logits, jnp.asarray(tokens)[:, None], jnp.zeros((len(tokens), 1), bool))
    expected = Shape.of([0, 0, 0], tokens).drawn_from([q], without_replacement=True)
    np.testing.assert_allclose(recorded[:, 0], expected, rtol=1e-12)
    assert (expected[:, 2].sum(-1) > 0).all()


class TreeRule(Token):
    """Token verification, written so that each of its parts can be replaced."""

    def seen(self, draft):
        return draft

    def rejected(self, left, q):
        return residual(left, q)

    def last(self, left, law, missed):
        return left

    def accept(self, draft, p, coins):
        draft = self.seen(draft)
        batch, num = draft.tokens.shape
        rows, at = jnp.arange(batch), jnp.zeros(batch, jnp.int32)
        num_accepted, path = at, jnp.zeros((batch, num), jnp.int32)
        left, missed = p[:, 0], jnp.zeros_like(p[:, 0])
        for node in range(1, num + 1):
            token, q = draft.tokens[:, node - 1], node_law(draft, node, V, p.dtype)
            tried = draft.valid[:, node - 1] & (draft.parent[:, node - 1] == at)
            passes = tried & (coins[:, node - 1] * q[rows, token] < left[rows, token])
            left = jnp.where(tried[:, None], self.rejected(left, q), left)
            missed = jnp.where(tried[:, None], q, missed)
            left = jnp.where(passes[:, None], p[:, node], left)
            missed = jnp.where(passes[:, None], 0, missed)
            path = jnp.where(passes[:, None], path.at[rows, num_accepted].set(node), path)
            num_accepted = num_accepted + passes.astype(jnp.int32)
            at = jnp.where(passes, node, at)
        return Verdict(num_accepted, path, self.last(left, p[rows, at], missed))


class ResidualNotUpdated(TreeRule):
    """Every sibling is tried against p; the end is drawn from what the last one leaves."""

    def rejected(self, left, q):
        return left

    def last(self, left, law, missed):
        return residual(left, missed)


class DrawsAfresh(TreeRule):
    """Where no child was hit, the next token is drawn from p again."""

    def last(self, left, law, missed):
        return law


def score(draft):
    return jnp.take_along_axis(draft.probs, draft.tokens[..., None], axis=-1)[..., 0]


class PrunesUnlikely(TreeRule):
    """A child that the drafter itself finds unlikely is dropped after it was drawn."""

    def seen(self, draft):
        return dataclasses.replace(draft, valid=draft.valid & (score(draft) > 0.3))


class TriesLikeliestFirst(Token):
    """Siblings are tried in the order of their own scores, each with the law it was drawn from."""

    def accept(self, draft, p, coins):
        level = tree.depths(draft.parent)[:, 1:].astype(jnp.float64)
        order = jnp.argsort(2 * level - score(draft), axis=1)
        place = jnp.pad(jnp.argsort(order, axis=1).astype(jnp.int32) + 1, ((0, 0), (1, 0)))
        parent = jnp.take_along_axis(place, draft.parent, axis=1)
        sort = jax.vmap(lambda row, at: row[at])
        parts = (draft.tokens, parent, draft.valid, draft.probs)
        p = jnp.concatenate([p[:, :1], sort(p[:, 1:], order)], axis=1)
        verdict = super().accept(Draft(*(sort(x, order) for x in parts)), p, sort(coins, order))
        nodes = jnp.pad(order.astype(jnp.int32) + 1, ((0, 0), (1, 0)))
        return verdict.replace(path=jnp.take_along_axis(nodes, verdict.path, axis=1))


@SIBLINGS
def test_the_replaceable_rule_is_right_before_a_part_is_replaced(without_replacement):
    p, q = laws("random", 2)
    assert error(TreeRule(), BINARY, p, q, without_replacement=without_replacement) < 1e-12


@SIBLINGS
@pytest.mark.parametrize(
    "rule",
    [ResidualNotUpdated, DrawsAfresh, PrunesUnlikely, TriesLikeliestFirst],
    ids=lambda rule: rule.__name__,
)
def test_enumeration_finds_the_wrong_tree_rule(rule, without_replacement):
    p, q = laws("random", 2, seed=4)
    assert error(rule(), BINARY, p, q, without_replacement=without_replacement) > 1e-3


def test_enumeration_finds_an_unreduced_law_recorded_for_reduced_draws():
    p, q = laws("random", 2, seed=4)
    assert error(Token(), BINARY, p, q, without_replacement=True, recorded=q) > 1e-3


@pytest.mark.parametrize("rule", [DrawsAfresh, ResidualNotUpdated], ids=lambda r: r.__name__)
def test_enumeration_finds_wrong_rules_for_point_masses(rule):
    p, _ = laws("random", 2, seed=4)
    tokens = np.array([2, 0, 1, 2, 0, 1], np.int32)
    assert error(rule(), BINARY, p, None, point_mass=tokens) > 1e-3


def every_draw():
    """All drafts of a binary tree times all that the target may draw, -1 where nothing is allowed.

    Returns drafts, the three draws of plain sampling, and the coins of every node: those draws
    where its path agrees with them, and elsewhere any one token or none.
    """
    drafts, draws = every_sequence(V, len(BINARY)), every_sequence(V + 1, 3) - 1
    cells = np.indices((len(drafts), len(draws), V + 1), np.int32).reshape(3, -1)
    tokens, draws, elsewhere = drafts[cells[0]], draws[cells[1]], cells[2] - 1
    coins = []
    for line in Shape.of(BINARY, tokens).lines:
        agrees = (tokens[:, np.array(line, int) - 1] == draws[:, : len(line)]).all(1)
        coins.append(np.where(agrees, draws[:, len(line)], elsewhere))
    return tokens, draws, np.stack(coins, axis=1)


@pytest.mark.parametrize("valid", [[1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 1]], ids=str)
def test_the_coupled_walk_emits_plain_sampling_for_every_draw(valid):
    tokens, draws, coins = every_draw()
    rows = np.arange(len(tokens))
    valid = np.broadcast_to(np.array(valid, bool), tokens.shape)
    parent = np.broadcast_to(np.array(BINARY, np.int32), tokens.shape)
    draft = Draft(*map(jnp.asarray, (tokens, parent, valid)))
    verdict = jax.jit(Coupled().accept)(draft, jnp.zeros((*coins.shape, V)), jnp.asarray(coins))
    num, path, last = map(np.asarray, (verdict.num_accepted, verdict.path, verdict.last))
    for depth in (1, 2):
        accepted = np.flatnonzero(num >= depth)
        assert len(accepted)
        node = path[accepted, depth - 1]
        assert (tokens[accepted, node - 1] == draws[accepted, depth - 1]).all()
        assert valid[accepted, node - 1].all()
    drawn = draws[rows, num]
    np.testing.assert_array_equal(last, drawn[:, None] == np.arange(V))
    at = np.where(num > 0, path[rows, num - 1], 0)
    hit = valid & (parent == at[:, None]) & (tokens == drawn[:, None])
    assert not hit.any(), "the walk stopped although a child was hit"
