"""A replay of what was said tells what a drafter brings, without the model that said it."""

import jax
import jax.numpy as jnp
import pytest

from specjax import Decoder
from specjax.bench.replay import Foretold, replay
from specjax.drafters import NGram
from specjax.testing import tiny_lm

TARGET = tiny_lm(jax.random.key(0))
PROMPTS = [[3, 4, 5, 3, 4], [9, 8], [7] * 6]


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_replay_counts_what_the_model_itself_would(temperature):
    settings = {"max_new_tokens": 24, "temperature": temperature, "seed": 2}
    result = Decoder(TARGET, NGram(3)).generate(PROMPTS, **settings)
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, result.tokens, strict=True)]
    found = replay(texts, [len(p) for p in PROMPTS], NGram(3), vocab_size=TARGET.vocab_size)
    for ours, theirs in zip(found, result.row_metrics, strict=True):
        assert ours.outcomes.tolist() == theirs.outcomes.tolist()


def test_a_script_that_is_right_is_kept_as_far_as_it_is():
    texts = [[1, 2, 3, 4, 5, 6, 7, 8, 9]]
    script = jnp.asarray([[0, 0, 3, 4, 0, 0, 7, 8, 9, 0]])  # wrong about the fifth and sixth
    (found,) = replay(texts, [2], Foretold(script, 4), vocab_size=12)
    # Two kept and a 5; none and a 6; 7, 8 and 9 kept.
    assert found.num_rounds == 3
    assert found.num_accepted_tokens == 2 + 0 + 2
