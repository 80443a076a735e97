"""Draft lengths that adapt: what is chosen from which past, and that it changes no law."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.adaptive import Adaptive

COSTS = jnp.asarray([1.0, 1.5, 1.5, 1.5, 1.6])
ACTIVE = jnp.ones(2, bool)


def after(policy, rounds, kind=0):
    """State of two rows after rounds of (drafted, accepted), the same in both."""
    state = policy.init(2, 4, 2)
    for drafted, accepted in rounds:
        both = lambda x: jnp.full(2, x, jnp.int32)  # noqa: E731
        state = policy.update(state, both(kind), both(drafted), both(accepted))
    return state


def test_what_is_always_accepted_is_drafted_longest():
    policy = Adaptive(COSTS)
    caps = policy.caps(after(policy, [(4, 4)] * 5), ACTIVE)
    assert caps[:, 0].tolist() == [4, 4]


def test_what_is_never_accepted_is_left_and_tried_again_for_a_share_of_the_time():
    policy = Adaptive(COSTS, exploration=0.05)
    state, tries = after(policy, []), []
    for step in range(80):
        cap = policy.caps(state, ACTIVE)[:, 0]
        tries += [step] if int(cap[0]) else []
        state = policy.update(state, jnp.zeros(2, jnp.int32), cap, jnp.zeros(2, jnp.int32))
    assert len(tries) > 4
    assert len(tries) * 0.5 <= 0.05 * 80 + 0.5  # a try loses half a round; the first may be early
    assert all(8 <= gap <= 11 for gap in np.diff(tries)[1:])


def test_a_length_is_what_maximises_tokens_over_cost():
    """By hand: rates .8 and .4 at these costs and c = .1 give 1, 1.125, 1.247, 1.26, 1.18."""
    policy = Adaptive(COSTS, draft_cost=0.1, weight=1e-6, memory=1.0)
    state = policy.init(1, 4, 1)
    state = state.replace(
        judged=jnp.asarray([[[10.0, 8.0, 3.2, 1.28]]]), kept=jnp.asarray([[[8.0, 3.2, 1.28, 0.0]]])
    )
    np.testing.assert_allclose(policy.rates(state)[0, 0], [0.8, 0.4, 0.4, 0.0], atol=1e-4)
    gains = 1 + np.cumsum(np.cumprod([0.8, 0.4, 0.4, 0.0]))
    values = gains / (np.asarray(COSTS)[1:] + 0.1 * np.arange(1, 5))
    assert policy.caps(state, ACTIVE[:1])[0, 0] == values.argmax() + 1


def test_kinds_are_kept_apart():
    policy = Adaptive(COSTS, exploration=1e-3)
    state = after(policy, [(4, 0)] * 6, kind=0)
    state = policy.update(state, jnp.ones(2, jnp.int32), jnp.full(2, 4), jnp.full(2, 4))
    assert policy.caps(state, ACTIVE).tolist() == [[0, 4], [0, 4]]


def test_costs_are_those_of_the_rows_that_run():
    lines = jnp.asarray([[1.0, 1.0, 1.0], [1.0, 3.0, 4.0]])
    policy = Adaptive(lines, loads=jnp.asarray([2, 8]))
    state = policy.init(8, 2, 1)
    few, many = (jnp.arange(8) < num for num in (2, 5))
    assert policy.caps(state, few)[0, 0] == 2
    assert policy.caps(state, many)[0, 0] == 0
    assert not policy.rows_independent
    assert Adaptive(COSTS).rows_independent


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Adaptive(COSTS[:3]), r"pass_costs: must be of shape \(5,\)"),
        (Adaptive(COSTS, loads=jnp.asarray([1])), r"pass_costs: must be of shape \(1, 5\)"),
        (Adaptive(COSTS * 0), "pass_costs: must be above 0"),
    ],
)
def test_costs_of_other_drafts_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        policy.validate(4)
