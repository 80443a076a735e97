"""Log-probabilities of what was emitted: the model's own and the processed ones, by name."""

import jax
import numpy as np
import pytest

from specjax import Decoder
from specjax.drafters import DraftModel, NGram
from specjax.testing import tiny_lm

TARGET = tiny_lm(jax.random.key(0))
V = TARGET.vocab_size
PROMPTS = [[5, 6, 7, 5, 6], [9, 2], [3, 3, 3, 3]]
SETTINGS = {
    "max_new_tokens": 16,
    "temperature": [1.0, 0.0, 0.7],
    "repetition_penalty": 1.3,
    "top_k": [0, 0, 5],
    "seed": 3,
    "logprobs": 4,
}


@pytest.fixture(scope="module", params=["ngram", pytest.param("model", marks=pytest.mark.slow)])
def decoder(request):
    drafters = {"ngram": NGram(3), "model": DraftModel(TARGET, 3)}
    return Decoder(TARGET, drafters[request.param], prefill_chunk=8)


@pytest.fixture(scope="module")
def result(decoder):
    with jax.default_matmul_precision("highest"):
        return decoder.generate(PROMPTS, **SETTINGS)


@pytest.fixture(scope="module")
def forced():
    """The model's logits after each token of a text, by one pass over the whole."""

    def logits(text):
        tokens = jax.numpy.asarray([text], jax.numpy.int32)
        start = jax.numpy.zeros(1, jax.numpy.int32)
        cache = TARGET.init_cache(1, len(text))
        hidden, _, _ = TARGET.extend(tokens, start, cache, count=start + len(text))
        return np.asarray(TARGET.unembed(hidden))[0]

    return logits


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def test_raw_logprobs_equal_teacher_forcing(decoder, result):
    assert result.logprobs is not None
    for prompt, tokens, found in zip(PROMPTS, result.tokens, result.logprobs, strict=True):
        np.testing.assert_allclose(found, decoder.score(prompt, tokens), atol=1e-5)
        assert max(found) < 0


def test_top_logprobs_are_the_likeliest_of_the_model(result, forced):
    for prompt, tokens, tops in zip(PROMPTS, result.tokens, result.top_logprobs, strict=True):
        laws = forced(prompt + tokens)
        for at, top in enumerate(tops):
            law = log_softmax(laws[len(prompt) + at - 1])
            assert list(top) == np.argsort(-law, kind="stable")[:4].tolist()
            np.testing.assert_allclose(list(top.values()), np.sort(law)[::-1][:4], atol=1e-5)


def test_processed_logprobs_are_those_of_the_law_sampled_from(result, forced):
    """By hand: repetition penalty over the text so far, temperature (0 leaves it), top-k."""
    heats = [1.0, 1.0, 0.7]
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, result.tokens, strict=True)):
        laws = forced(prompt + tokens)
        for at, token in enumerate(tokens):
            logits = laws[len(prompt) + at - 1].astype(np.float64)
            seen = np.unique(prompt + tokens[:at])
            logits[seen] = np.where(logits[seen] < 0, logits[seen] * 1.3, logits[seen] / 1.3)
            logits = logits / heats[row]
            if row == 2:
                logits[logits < np.sort(logits)[-5]] = -np.inf
            expected = log_softmax(logits)[token]
            np.testing.assert_allclose(result.processed_logprobs[row][at], expected, atol=1e-5)


def test_no_logprobs_unless_asked_for():
    result = Decoder(TARGET, prefill_chunk=8).generate(PROMPTS, **{**SETTINGS, "logprobs": None})
    assert result.logprobs is result.processed_logprobs is result.top_logprobs is None


def test_no_alternatives_are_none():
    result = Decoder(TARGET, prefill_chunk=8).generate(PROMPTS, **{**SETTINGS, "logprobs": True})
    assert [len(row) for row in result.logprobs] == [16] * 3
    assert result.top_logprobs == [[{}] * 16] * 3


def test_pieces_of_a_stream_have_the_logprobs_of_the_result(decoder, result):
    stream = decoder.stream(PROMPTS, **SETTINGS)
    found, tops = [[], [], []], [[], [], []]
    with jax.default_matmul_precision("highest"):
        for piece in stream:
            found[piece.row] += piece.logprobs
            tops[piece.row] += piece.top_logprobs
    assert found == stream.result.logprobs
    assert tops == stream.result.top_logprobs
    assert stream.result.tokens == result.tokens
