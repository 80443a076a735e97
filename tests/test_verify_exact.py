"""L0: what the shipped verifiers emit, enumerated over all drafts and coins in float64."""

import jax
import numpy as np
import pytest

from specjax.testing.exact import emitted_law, product_law, random_laws
from specjax.verify import Block, Token

CHAIN = [0, 1, 2]
V = 3


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


@pytest.mark.parametrize("parent", [[0, 0], [0, 0, 1, 1], [0, 0, 1, 2]])
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_tree_with_independent_siblings_emits_the_target_law(parent, kind):
    p, q = laws(kind, 2 if max(parent) else 1)
    assert error(Token(), parent, p, q) < 1e-12


def test_tree_of_point_masses_emits_the_target_law():
    p, _ = laws("random", 2)
    tokens = np.array([2, 0, 1, 2], np.int32)
    assert error(Token(), [0, 0, 1, 1], p, None, point_mass=tokens) < 1e-12
