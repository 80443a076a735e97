"""Several samples of a prompt for one prefill, and rows whose drafts have caps of their own."""

import jax
import numpy as np
import pytest

from specjax import Decoder
from specjax.drafters import DraftModel, NGram
from specjax.testing import TableLM

TARGET = TableLM.random(jax.random.key(0), 60)
DRAFT = TableLM(TARGET.table + 0.7 * TableLM.random(jax.random.key(1), 60).table)
PROMPTS = [[5, 6, 7, 5, 6], [9, 2]]
SETTINGS = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}


@pytest.fixture(scope="module", params=["coupled", pytest.param("block", marks=pytest.mark.slow)])
def decoder(request):
    return Decoder(TARGET, DraftModel(DRAFT, 3), verifier=request.param, prefill_chunk=8)


def test_samples_stand_together_and_the_first_is_the_prompt_alone(decoder):
    one = decoder.generate(PROMPTS, **SETTINGS)
    three = decoder.generate(PROMPTS, n=3, **SETTINGS)
    assert three.samples == [0, 1, 2] * 2
    assert three.seeds == [3, 3, 3, 4, 4, 4]
    assert len({tuple(row) for row in three.tokens}) == 6
    assert three.tokens[::3] == one.tokens
    assert len(three.row_metrics) == len(three.finish_reasons) == 6


def test_more_samples_leave_the_first_ones_as_they_were(decoder):
    three = decoder.generate(PROMPTS, n=3, **SETTINGS)
    two = decoder.generate(PROMPTS, n=2, **SETTINGS)
    assert two.tokens == [three.tokens[row] for row in (0, 1, 3, 4)]


def test_settings_of_a_prompt_are_those_of_its_samples(decoder):
    settings = {**SETTINGS, "temperature": [0.0, 1.0], "max_new_tokens": [4, 12]}
    result = decoder.generate(PROMPTS, n=3, **settings)
    assert [len(row) for row in result.tokens] == [4] * 3 + [12] * 3
    assert len({tuple(row) for row in result.tokens[:3]}) == 1
    assert len({tuple(row) for row in result.tokens[3:]}) == 3


def test_a_stream_of_samples_is_the_result(decoder):
    stream = decoder.stream(PROMPTS, n=3, **SETTINGS)
    rows = [[] for _ in range(6)]
    for piece in stream:
        rows[piece.row] += piece.tokens
    assert rows == stream.result.tokens == decoder.generate(PROMPTS, n=3, **SETTINGS).tokens


def test_the_prompt_is_prefilled_in_one_row():
    decoder = Decoder(TARGET, NGram(3), prefill_chunk=8)
    call = decoder.prepare([[1 + i % 50 for i in range(100)]], n=16, **SETTINGS)
    assert call.request.tokens.shape[0] == 1
    assert call.num_rows == 16


def test_caps_of_their_own_change_no_token_and_bound_the_drafts():
    decoder = Decoder(TARGET, DraftModel(DRAFT, 3), verifier="coupled", prefill_chunk=8)
    free = decoder.generate([PROMPTS[0]] * 3, **{**SETTINGS, "seed": [1, 1, 1]})
    capped = decoder.generate(
        [PROMPTS[0]] * 3, draft_length=[0, 2, 9], **{**SETTINGS, "seed": [1, 1, 1]}
    )
    assert capped.tokens == free.tokens
    for metrics, cap in zip(capped.row_metrics, (0, 2, 3), strict=True):
        assert np.flatnonzero(metrics.draft_length_histogram).max() == cap
    assert capped.row_metrics[0].num_rounds == 12
