"""The user's view: prompts of every kind, seeds, streams, scores, and combinations refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import struct
from hand_drafters import Branching, counting_lm
from tokenizers import decoders, models, pre_tokenizers, processors

from specjax import Decoder, compiled
from specjax.drafters import DraftModel, NGram
from specjax.io import Tokenizer
from specjax.testing import TableLM, tiny_lm
from specjax.verify import Block, Coupled, Token

ROBOT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("🤖")
PIECES = ["<end>", "<user>", "a", "b", "c", "Ġ", *ROBOT[0][0]]
V = len(PIECES)
TEMPLATE = "{% for m in messages %}<user>{{ m.content }}{% endfor %}"


def make_tokenizer(**settings):
    """Three letters, a space and the four bytes of an emoji, so that characters can be cut."""
    backend = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, []))
    backend.add_special_tokens(PIECES[:2])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if settings.pop("begins_texts", False):
        backend.post_processor = processors.TemplateProcessing(
            single="<user> $A", special_tokens=[("<user>", 1)]
        )
    return Tokenizer(backend, chat_template=TEMPLATE, **settings)


TARGET = TableLM(TableLM.random(jax.random.key(3), V).table.at[..., 0].add(-2.0))
TOKENIZER = make_tokenizer(stop_ids=[0])


@pytest.fixture(scope="module")
def decoder():
    """Prompt lookup over text; every test uses batches of one or of three."""
    return Decoder(TARGET, NGram(3), tokenizer=TOKENIZER, capacity=90)


SAMPLED = {"max_new_tokens": 24, "temperature": 1.0}
THREE = ["ab ca", [2, 3], [{"role": "user", "content": "c🤖"}]]


def test_text_ids_and_chat_are_the_same_prompts(decoder):
    ids = [[2, 3, 5, 4, 2], [2, 3], [1, 4, 6, 7, 8, 9]]
    mixed, plain = (decoder.generate(p, seed=5, **SAMPLED) for p in (THREE, ids))
    assert mixed.tokens == plain.tokens
    assert mixed.texts == plain.texts


def test_a_result_says_what_was_done(decoder):
    result = decoder.generate(THREE, seed=5, **SAMPLED)
    assert set(result.finish_reasons) == {"stop", "length"}
    for row, tokens in enumerate(result.tokens):
        stopped = result.finish_reasons[row] == "stop"
        assert len(result.drafted[row]) == len(tokens)
        assert len(tokens) <= 24 if stopped else len(tokens) == 24
        assert 0 not in tokens[: -1 if stopped else None]
        assert tokens[-1] == 0 or not stopped
        assert result.texts[row] == TOKENIZER.decode(tokens[:-1] if stopped else tokens)
        assert result.row_metrics[row].num_tokens == len(tokens)
    assert result.metrics.num_tokens == sum(map(len, result.tokens))
    assert result.exact
    assert result.rows_independent
    assert result.metrics.tokens_per_second > 0


def test_the_seeds_returned_give_the_same_tokens_again(decoder):
    result = decoder.generate(THREE, **SAMPLED)
    assert decoder.generate(THREE, seed=result.seeds, **SAMPLED).tokens == result.tokens
    assert decoder.generate(THREE, **SAMPLED).tokens != result.tokens


def test_seed_s_gives_row_i_what_seed_s_plus_i_gives_alone(decoder):
    result = decoder.generate(THREE, seed=11, **SAMPLED)
    assert result.seeds == [11, 12, 13]
    for row, prompt in enumerate(THREE):
        alone = decoder.generate([prompt], seed=11 + row, **SAMPLED)
        assert alone.tokens[0] == result.tokens[row]


def test_settings_are_each_rows_own(decoder):
    mixed = decoder.generate(
        [[2, 3]] * 3, max_new_tokens=12, temperature=[0, 1.0, 1.0], top_k=[0, 0, 1], seed=[1, 1, 1]
    )
    greedy, sampled, top_1 = mixed.tokens
    assert greedy == top_1 == decoder.generate([2, 3], max_new_tokens=12).tokens[0]
    assert sampled == decoder.generate([2, 3], max_new_tokens=12, temperature=1.0, seed=1).tokens[0]
    assert sampled != greedy


def test_stop_ids_given_replace_the_tokenizers(decoder):
    settings = {"temperature": 1.0, "seed": 5, "max_new_tokens": 40}
    never = decoder.generate(THREE, stop_token_ids=[], **settings)
    assert never.finish_reasons == ["length"] * 3
    assert any(0 in row for row in never.tokens)
    spaces = decoder.generate(THREE, stop_token_ids=[5], **settings)
    for short, whole in zip(spaces.tokens, never.tokens, strict=True):
        assert short == whole[: whole.index(5) + 1]


def test_no_budget_gives_empty_texts(decoder):
    result = decoder.generate(THREE, max_new_tokens=0)
    assert result.tokens == [[], [], []]
    assert result.texts == ["", "", ""]
    assert result.finish_reasons == ["length"] * 3
    assert math.isnan(result.metrics.mean_acceptance_length)


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_pieces_of_a_stream_joined_are_the_result(decoder, rounds):
    stream = decoder.stream(THREE, seed=5, rounds=rounds, **SAMPLED)
    pieces = list(stream)
    whole = decoder.generate(THREE, seed=5, **SAMPLED)
    for row in range(3):
        mine = [piece for piece in pieces if piece.row == row]
        assert [t for piece in mine for t in piece.tokens] == whole.tokens[row]
        assert [d for piece in mine for d in piece.drafted] == whole.drafted[row]
        assert "".join(piece.text for piece in mine) == whole.texts[row]
        reasons = [piece.finish_reason for piece in mine]
        assert reasons == [None] * (len(mine) - 1) + [whole.finish_reasons[row]]
    assert stream.result.tokens == whole.tokens
    assert stream.result.texts == whole.texts
    np.testing.assert_array_equal(stream.result.metrics.outcomes, whole.metrics.outcomes)
    assert len(stream.result.metrics.gaps) == sum(map(len, whole.tokens)) - 3


def test_a_stream_hands_out_whole_characters(decoder):
    """The greedy text is robots alone, one byte a token."""
    robots = TableLM(counting_robots())
    streaming = Decoder(robots, tokenizer=TOKENIZER).stream([6, 7, 8], max_new_tokens=10)
    texts = [piece.text for piece in streaming]
    assert "".join(texts) == streaming.result.texts[0] == "\ufffd🤖🤖\ufffd"
    assert set(texts[:-1]) <= {"", "\ufffd", "🤖", "\ufffd🤖"}


def counting_robots():
    """Logits that go round through the four bytes."""
    following = np.zeros((V, V), np.float32)
    for at in range(4):
        following[6 + at, 6 + (at + 1) % 4] = 30
    return jnp.broadcast_to(jnp.asarray(following), (V, V, V))


def test_a_stream_without_budget_gives_one_empty_piece_a_row(decoder):
    stream = decoder.stream(THREE, max_new_tokens=0)
    assert [(p.row, p.text, p.tokens, p.finish_reason) for p in stream] == [
        (row, "", [], "length") for row in range(3)
    ]
    assert math.isnan(stream.result.metrics.time_to_first_token)


def test_the_result_of_a_stream_is_there_at_every_moment(decoder):
    stream = decoder.stream(THREE, max_new_tokens=4, stop_token_ids=[])
    with pytest.raises(ValueError, match="result"):
        _ = stream.result
    next(iter(stream))
    assert stream.result.finish_reasons == ["interrupted"] * 3
    so_far = stream.result.tokens
    assert all(1 <= len(row) <= 3 for row in so_far)
    list(stream)
    assert [
        row[: len(old)] for row, old in zip(stream.result.tokens, so_far, strict=True)
    ] == so_far
    assert [len(row) for row in stream.result.tokens] == [4] * 3
    assert stream.result.finish_reasons == ["length"] * 3


@pytest.mark.parametrize("rounds", [0, -1, 1.5])
def test_rounds_below_one_are_refused(decoder, rounds):
    with pytest.raises(ValueError, match="rounds"):
        decoder.stream("a", rounds=rounds)


def test_bad_input_of_a_stream_is_refused_before_it_is_read(decoder):
    with pytest.raises(ValueError, match="temperature"):
        decoder.stream("a", max_new_tokens=4, temperature=-1.0)


def test_scores_are_the_targets_own_log_probabilities(decoder):
    prompt, completion = [2, 3, 5], [4, 4, 2, 6]
    text = np.array(prompt + completion)
    laws = jax.nn.log_softmax(TARGET.table)
    want = [laws[text[i - 2], text[i - 1], text[i]] for i in range(3, 7)]
    np.testing.assert_allclose(decoder.score(prompt, completion), want, rtol=1e-6)
    # The score of two texts in a row is that of the first, then that of the second after it.
    parts = decoder.score(prompt, completion[:2]) + decoder.score(text[:5], completion[2:])
    np.testing.assert_allclose(parts, want, rtol=1e-6)


def test_the_scores_of_every_next_token_are_a_law(decoder):
    total = sum(math.exp(decoder.score("ab", [token])[0]) for token in range(V))
    assert total == pytest.approx(1, abs=1e-5)


def test_a_completion_gets_no_beginning_of_text():
    begins = Decoder(TARGET, tokenizer=make_tokenizer(begins_texts=True))
    assert len(begins.score("ab", "ca")) == 2
    np.testing.assert_allclose(begins.score("ab", "ca"), begins.score([1, 2, 3], [4, 2]))


@pytest.mark.parametrize(
    ("prompt", "completion", "name"),
    [("", "a", "prompt"), ("a", [], "completion"), ("a", [V], "completion")],
)
def test_a_bad_text_to_score_is_refused_by_name(decoder, prompt, completion, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        decoder.score(prompt, completion)


def test_after_a_warmup_nothing_is_compiled(decoder):
    decoder.warmup(batch=3)
    traces = compiled.generate._cache_size()
    decoder.generate(THREE, seed=None, top_p=0.9, stop_token_ids=[1], **SAMPLED)
    decoder.generate([[2] * 60, [3], [4] * 9], max_new_tokens=30, temperature=[0, 1, 2], min_p=0.1)
    assert compiled.generate._cache_size() == traces


def test_a_prompt_beyond_the_capacity_is_refused(decoder):
    with pytest.raises(ValueError, match=r"prompts: .* 91 .* 90 "):
        decoder.generate([2] * 91, max_new_tokens=0)


# What goes together.


def test_without_a_verifier_the_one_that_loses_least_is_taken():
    assert isinstance(Decoder(TARGET).program.verifier, Coupled)
    assert isinstance(Decoder(TARGET, NGram(2)).program.verifier, Coupled)
    assert isinstance(Decoder(TARGET, DraftModel(TARGET)).program.verifier, Block)
    assert isinstance(Decoder(TARGET, Branching(TARGET.table)).program.verifier, Token)


def test_a_verifier_goes_by_name_or_value():
    by_name = {n: type(Decoder(TARGET, verifier=n).program.verifier) for n in ("token", "block")}
    assert by_name == {"token": Token, "block": Block}
    assert Decoder(TARGET, verifier=Coupled()).program.verifier == Coupled()


@struct.dataclass
class WantsTooMuch(Branching):
    """Asks for a layer that the target does not have."""

    wants = (0, 3)


SMALL = counting_lm(4)
REFUSED = [
    ("verifier", "unknown", {"verifier": "lenient"}),
    ("verifier", "name or a Verifier", {"verifier": 5}),
    ("verifier", "chains only", {"drafter": Branching(TARGET.table), "verifier": "block"}),
    ("drafter", "DraftModel", {"drafter": TARGET}),
    ("drafter", "4 tokens", {"drafter": DraftModel(SMALL)}),
    ("drafter", r"layers \[3\]", {"drafter": WantsTooMuch(TARGET.table)}),
    ("capacity", "at least 1", {"capacity": 0}),
    ("capacity", "int", {"capacity": 1.5}),
    ("prefill_chunk", "at least 1", {"prefill_chunk": 0}),
    ("prefill_chunk", "at least 1", {"prefill_chunk": -4}),
]


@pytest.mark.parametrize(("name", "reason", "arguments"), REFUSED, ids=lambda x: str(x)[:20])
def test_what_cannot_work_is_refused_before_anything_is_compiled(name, reason, arguments):
    with pytest.raises(ValueError, match=f"^{name}: .*{reason}"):
        Decoder(TARGET, **arguments)


def test_a_draft_length_below_one_is_refused():
    with pytest.raises(ValueError, match="^draft_length: "):
        DraftModel(TARGET, 0)


def test_a_capacity_beyond_the_target_is_refused():
    with pytest.raises(ValueError, match="capacity"):
        Decoder(tiny_lm(jax.random.key(0), max_length=64), capacity=65)


@struct.dataclass
class Forbids:
    """Forbids one token."""

    token: int = struct.field(pytree_node=False)

    def init(self, tokens, length, row):
        return ()

    def advance(self, h, token):
        return h

    def apply(self, logits, h, row):
        return logits.at[self.token].set(-jnp.inf)


def test_an_own_processor_comes_before_the_filters_and_replaces_none():
    greedy = Decoder(TARGET).generate([1, 2], max_new_tokens=1).tokens[0][0]
    own = Decoder(TARGET, processors=(Forbids(greedy),))
    best = own.generate([1, 2], max_new_tokens=1).tokens
    assert best != [[greedy]]
    assert own.generate([1, 2], max_new_tokens=1, temperature=9.0, top_k=1).tokens == best


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Decoder("smollm2-135m-instruct"), "target"),
        (lambda: Decoder(TARGET, NGram), "drafter"),
        (lambda: Decoder(TARGET, NGram(2), verifier=Block), "verifier"),
        (lambda: Decoder(TARGET, DraftModel("tiny")), "model"),
        (lambda: DraftModel(TARGET, 2, catch_up=0), "catch_up"),
        (lambda: NGram(4, max_ngram=2.5), "max_ngram"),
        (lambda: Decoder(TARGET).warmup(batch=0), "batch"),
        (lambda: Decoder(TARGET).warmup(length=0), "length"),
        (lambda: Decoder(TARGET).generate([1], temperature=[[1.0], [1.0, 2.0]]), "temperature"),
        (lambda: Decoder(TARGET).generate([1], seed=[[1], [1, 2]]), "seed"),
    ],
)
def test_a_likely_mistake_is_answered_by_name(make, name):
    with pytest.raises(ValueError, match=name):
        make()
