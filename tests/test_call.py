"""What a call puts into the program: grammars for each row, and the chains of both sides."""

import json
import re

import jax
import pytest
from byte_tokenizer import byte_tokenizer

from specjax import Decoder, compiled, sampling
from specjax.constraint import Constraint
from specjax.drafters import DraftModel, FirstOf, NGram, Plain
from specjax.grammar import json_schema, regex
from specjax.testing import TableLM

TEXTS = [*'abctruefls"{}:, 01', "true", "false", '{"', '": ', "ab", "ok"]
TOKENIZER = byte_tokenizer(["<end>"], TEXTS, stop_ids=[0])
V = 32  # more than the tokenizer has: the rest is padding
TARGET = TableLM.random(jax.random.key(0), V)
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "c": {"enum": ["a", "b"]}},
    "required": ["ok", "c"],
}
OBJECT = json_schema(SCHEMA, TOKENIZER)
WORDS = regex("(ab|c)*a", TOKENIZER)
PROMPTS = ["a", "bc", "c a", "true"]


@pytest.fixture(scope="module")
def decoder():
    return Decoder(TARGET, NGram(4), tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def result(decoder):
    grammars = [OBJECT, None, WORDS, OBJECT]
    return decoder.generate(PROMPTS, grammar=grammars, temperature=1.0, seed=0, max_new_tokens=60)


def test_each_row_writes_what_its_grammar_allows(result):
    for row in (0, 3):
        assert set(json.loads(result.texts[row])) == {"ok", "c"}
        assert result.finish_reasons[row] == "stop"
    assert re.fullmatch("(ab|c)*a?(b?)", result.texts[2])
    assert not re.fullmatch("(ab|c)*a", result.texts[1])


def test_a_row_without_a_grammar_is_left_alone(decoder, result):
    alone = decoder.generate(PROMPTS[1], temperature=1.0, seed=1, max_new_tokens=60)
    assert result.tokens[1] == alone.tokens[0]


def test_speculation_changes_no_token_under_a_grammar(result):
    plain = Decoder(TARGET, tokenizer=TOKENIZER)
    expected = plain.generate(
        PROMPTS, grammar=[OBJECT, None, WORDS, OBJECT], temperature=1.0, seed=0, max_new_tokens=60
    )
    assert result.tokens == expected.tokens
    assert result.metrics.num_rounds < expected.metrics.num_rounds


def test_a_grammar_of_similar_size_makes_no_trace(decoder, result):
    before = compiled.generate._cache_size()
    other = regex("[ab]{3}", TOKENIZER)
    again = decoder.generate(PROMPTS, grammar=other, temperature=1.0, seed=0, max_new_tokens=60)
    assert compiled.generate._cache_size() == before
    assert all(re.fullmatch("[ab]{3}", text) for text in again.texts)


@pytest.mark.parametrize(
    "grammar", ["[ab]", {"type": "object"}, [OBJECT, "a", None, None], [OBJECT]]
)
def test_what_is_no_grammar_is_refused_by_name(decoder, grammar):
    with pytest.raises(ValueError, match=r"^grammar: "):
        decoder.prepare([[1]] * 4, grammar=grammar)


def test_the_grammar_drafts_for_a_drafter_but_not_for_plain_decoding():
    drafters = [NGram(2), Plain(), Plain(3), DraftModel(TARGET, 2)]
    decoders = [Decoder(TARGET, drafter, tokenizer=TOKENIZER) for drafter in drafters]
    programs = [decoder.prepare([[1]], grammar=WORDS).program for decoder in decoders]
    wrapped = [isinstance(program.drafter, FirstOf) for program in programs]
    assert wrapped == [True, False, False, True]
    assert not isinstance(decoders[0].prepare([[1]]).program.drafter, FirstOf)


def test_a_chain_of_the_draft_side_follows_the_grammar_too():
    own = (sampling.Temperature(),)
    decoder = Decoder(TARGET, NGram(2), tokenizer=TOKENIZER, draft_processors=own)
    kinds = [type(p) for p in decoder.prepare([[1]], grammar=WORDS).program.draft_processors]
    assert kinds == [Constraint, sampling.Temperature]
    assert decoder.prepare([[1]]).program.draft_processors == own


def test_a_users_processor_comes_after_penalties_and_before_temperature():
    class Mine(sampling.Stateless):
        def apply(self, logits, h, row):
            return logits

    decoder = Decoder(TARGET, NGram(2), tokenizer=TOKENIZER, processors=(Mine(),))
    call = decoder.prepare([[1]], repetition_penalty=1.1, grammar=WORDS, logit_bias={1: 2.0})
    names = [type(p).__name__ for p in call.program.processors]
    assert names[:5] == ["Bias", "Penalties", "Constraint", "Mine", "Temperature"]


def test_padding_of_the_targets_own_vocabulary_has_no_mass():
    heavy = TableLM(TARGET.table.at[..., len(TOKENIZER.vocabulary) :].add(50.0))
    for drafter in (None, NGram(3)):
        decoder = Decoder(heavy, drafter, tokenizer=TOKENIZER)
        result = decoder.generate(["ab", "c"], max_new_tokens=20, temperature=[0.0, 1.0], seed=0)
        assert max(map(max, result.tokens)) < len(TOKENIZER.vocabulary)


def test_an_unknown_setting_is_refused_with_the_one_that_is_meant(decoder):
    with pytest.raises(TypeError, match=r"temprature: .* is temperature meant\?"):
        decoder.generate("a", temprature=1.0)
