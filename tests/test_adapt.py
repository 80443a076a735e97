"""Costs measured here become a policy of the same decoder."""

import jax
import numpy as np
import pytest

from specjax import Decoder
from specjax.bench import adapt
from specjax.bench.adapt import by_length
from specjax.drafters import DraftTree, NGram
from specjax.program import Program
from specjax.testing import tiny_lm
from specjax.verify import Coupled, Token

TARGET = tiny_lm(jax.random.key(0))


def test_a_decoder_is_adapted_and_says_the_same():
    plain = Decoder(TARGET, NGram(4), widths=(0,))
    prompts = [[3, 4, 5, 3, 4], [7] * 9]
    adapted = adapt(plain, prompts[0], repeats=1, options={"memory": 0.8})
    policy = adapted.program.policy
    assert policy.memory == 0.8
    assert policy.pass_costs.shape == (5,)
    assert (np.asarray(policy.pass_costs)[1:] == policy.pass_costs[4]).all()  # one width for all
    assert adapted.program.passes == (0, 4)
    expected = plain.generate(prompts, max_new_tokens=30)
    assert adapted.generate(prompts, max_new_tokens=30).tokens == expected.tokens


def test_a_draft_is_charged_for_the_first_width_that_holds_it():
    chain = Program(TARGET, NGram(5), Coupled(), widths=(0, 2))
    assert by_length(chain, [1.1, 1.5, 1.9]) == [1.0, 1.5, 1.5, 1.9, 1.9, 1.9]
    tree = Program(TARGET, DraftTree(TARGET, (2, 1)), Token(), widths=(0, 2))
    assert by_length(tree, [1.1, 1.5, 1.9]) == [1.0, 1.9, 1.9]


def test_plain_decoding_has_nothing_to_adapt():
    with pytest.raises(ValueError, match="decoder: has no drafter"):
        adapt(Decoder(TARGET), [1, 2])
