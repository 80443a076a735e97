"""Every wrong rule known from public code is found by the tests that guard the right one."""

import jax
import jax.numpy as jnp
import numpy as np
import planted_faults as faults
import pytest

from specjax.testing.exact import emitted_law, product_law, random_laws
from specjax.types import Draft
from specjax.verify import Block, Token

CHAIN_FAULTS = [
    faults.ResamplesFromTarget,
    faults.AcceptsWhenTargetIsHigher,
    faults.AbsoluteResidual,
    faults.ResidualWithoutToken,
    faults.ArgmaxOfResidual,
    faults.SoftmaxOfResidual,
    faults.BonusAtWrongTemperature,
    faults.BonusFromDraft,
    faults.AcceptsTheArgmax,
    faults.JudgedByThePreviousRow,
    faults.KeepsTheTail,
    faults.BlockWithoutClamp,
    faults.BlockOfCovers,
    faults.BlockStopsAtFirstFailure,
    faults.BlockWithTokenResidual,
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def laws():
    generator = np.random.default_rng(1)
    return random_laws(generator, 3, 4), random_laws(generator, 3, 3)


def error(verifier, laws, **kwargs):
    p, q = laws
    return np.abs(emitted_law(verifier, [0, 1, 2], p, q, **kwargs) - product_law(p)).max()


@pytest.mark.parametrize("rule", [faults.ChainRule, faults.BlockRule])
def test_the_replaceable_rules_are_right_before_a_part_is_replaced(rule, laws):
    assert error(rule(), laws) < 1e-12


@pytest.mark.parametrize("rule", CHAIN_FAULTS, ids=lambda rule: rule.__name__)
def test_enumeration_finds_the_wrong_rule(rule, laws):
    assert error(rule(), laws) > 1e-6


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_enumeration_finds_a_law_recorded_at_another_temperature(verifier, laws):
    recorded = [q**2 / (q**2).sum(-1, keepdims=True) for q in laws[1]]
    assert error(verifier, laws, recorded=recorded) > 1e-4


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_enumeration_finds_an_argmax_draft_treated_as_sampled(verifier, laws):
    p, q = laws
    best = np.array([2, 0, 1], np.int32)
    law = emitted_law(verifier, [0, 1, 2], p, None, point_mass=best, recorded=q)
    assert np.abs(law - product_law(p)).max() > 1e-4


def zero_draft():
    """A draft token that the target forbids, and a coin of exactly zero."""
    q = jnp.asarray([[[0.5, 0.5, 0.0]]])
    p = jnp.asarray([[[0.0, 0.4, 0.6], [0.2, 0.3, 0.5]]])
    one = jnp.zeros((1, 1), jnp.int32)
    return Draft(one, one, jnp.ones((1, 1), bool), q), p, jnp.zeros((1, 1))


@pytest.mark.parametrize("verifier", [Token(), Block()], ids=["token", "block"])
def test_a_zero_coin_lets_no_forbidden_token_through(verifier):
    assert verifier.accept(*zero_draft()).num_accepted.tolist() == [0]
    assert faults.ForgivesAZeroCoin().accept(*zero_draft()).num_accepted.tolist() == [1]
