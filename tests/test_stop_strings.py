"""Stop strings: found on the device as a search of the plain text on the host finds them."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from byte_tokenizer import byte_tokenizer
from flax import struct
from tokenizers import decoders, models

from specjax import Decoder, compiled
from specjax.drafters import NGram
from specjax.io import Tokenizer
from specjax.io.stop_strings import MOST
from specjax.testing import TableLM
from specjax.texts import answer, dropped_spaces, first_complete, held_back

ROBOT, ROWS, BUDGET = "🤖", 8, 40
TEXTS = ["a", "b", "c", " ", "ab", "bc", "ca", " a", "é", "abcd"]
TOKENIZER = byte_tokenizer(["<end>", "<pad>"], TEXTS, cut=ROBOT)
END, PAD, A, B, C, SPACE, AB, BC, CA, SPACE_A, ACUTE, ABCD, *BYTES = range(16)
SPELLED = TOKENIZER.token_bytes
V = 16
RANDOM = TableLM.random(jax.random.key(0), V, scale=1.5).table
FROM = jnp.asarray(BYTES[:3])
TARGET = TableLM(RANDOM.at[:, FROM, FROM + 1].add(3.0))  # so that whole characters occur
PROMPTS = [[A], [AB, C], BYTES[:2], [ACUTE, SPACE] * 3, BYTES, [PAD, B], [C, A, B], [SPACE_A]]
SETTINGS = {"stop_token_ids": [], "min_new_tokens": 0, "max_new_tokens": BUDGET}


@pytest.fixture(scope="module")
def sides():
    """The last says nothing of stops: its text is what is searched on the host."""
    return [Decoder(TARGET, d, tokenizer=TOKENIZER, capacity=120) for d in (NGram(4), None)]


def prepared(strings, **settings):
    return Decoder(TARGET, tokenizer=TOKENIZER).prepare(PROMPTS, stop=strings, **settings)


def sized(rng, texts):
    """Some random strings for each row, many of them in its text; together of one size.

    What is compiled depends on how many prefixes they have.
    """
    prefixes, rows = {b""}, [[] for _ in range(ROWS)]
    for row in itertools.cycle(range(ROWS)):
        text = texts[row] if rng.random() < 0.5 else "abc é🤖 ab"
        begin = rng.integers(0, len(text) - 7)
        string = text[begin : begin + rng.integers(3, 8)].replace("\ufffd", "")
        more = {string.encode()[:n] for n in range(1, len(string.encode()) + 1)}
        if string and len(prefixes | more) <= 64:
            rows[row].append(string)
            prefixes |= more
        if len(prefixes) > 48:
            return rows


def searched(tokens, stops, least=0):
    """Tokens, text and stop of a row whose plain tokens are known: a search byte by byte."""
    text = b""
    for num, token in enumerate(tokens, 1):
        for byte in SPELLED[token]:
            text += bytes([byte])
            complete = [s for s in stops if text.endswith(s.encode())]
            if complete and num >= least:
                stop = max(complete, key=len)
                shown = text[: -len(stop.encode())].decode(errors="replace")
                return tokens[:num], shown, "stop", stop
    return tokens, text.decode(errors="replace"), "length", None


def expect(result, free, stops, least=0):
    least = np.broadcast_to(least, ROWS).tolist()
    for row in range(ROWS):
        tokens, text, reason, stop = searched(free.tokens[row], stops[row], least[row])
        found = (result.finish_reasons[row], result.stopped_by[row])
        assert (result.tokens[row], result.texts[row], *found) == (tokens, text, reason, stop)
        assert len(result.drafted[row]) == len(tokens)
        assert result.row_metrics[row].num_tokens == len(tokens)
        if not least[row]:
            assert not any(s in text for s in stops[row])


# Random texts and random strings.


def plain_texts(sides, seed, temperature):
    free = sides[1].generate(
        PROMPTS, seed=seed, temperature=temperature, stop_token_ids=[], max_new_tokens=BUDGET
    )
    assert free.finish_reasons == ["length"] * ROWS
    return free


def test_what_is_found_on_the_device_is_what_a_search_of_the_plain_text_finds(sides):
    """Across the borders of tokens, inside accepted runs, through cut and special characters."""
    rng, found, traces = np.random.default_rng(0), [], set()
    inside = 0
    for seed in range(30):
        temperature = float(seed % 3 > 0)
        free = plain_texts(sides, seed, temperature)
        stops = sized(rng, free.texts)
        least = rng.integers(0, 12, ROWS).tolist() if seed % 2 else 0
        for decoder in sides:
            result = decoder.generate(
                PROMPTS,
                **SETTINGS | {"min_new_tokens": least},
                stop=stops,
                seed=seed,
                temperature=temperature,
            )
            expect(result, free, stops, least)
            found += result.stopped_by
            inside += sum(m.num_clipped_tokens > 0 for m in result.row_metrics)
        traces.add(compiled.generate._cache_size())
    assert len(traces) == 1  # other strings of about the same size compile nothing
    assert 0.2 < found.count(None) / len(found) < 0.8
    assert any(ROBOT in s for s in found if s)
    assert inside > 20  # a run that went on was cut


# By hand.


@struct.dataclass
class Copies:
    """Lets a row say nothing but its prompt, token by token."""

    def init(self, tokens, length, row):
        return tokens, jnp.zeros((), jnp.int32)

    def advance(self, h, token):
        return h[0], h[1] + 1

    def apply(self, logits, h, row):
        return jnp.where(jnp.arange(V) == h[0][h[1]], logits, -jnp.inf)


HAND = {
    "across the border of two tokens": ([A, AB, C], ["aab"], "", "aab", 2),
    "inside a token": ([A, ABCD, C], ["bc"], "aa", "bc", 2),
    "at the end of a token that goes on": ([C, ABCD], ["ca"], "", "ca", 2),
    "the one complete first of two that overlap": ([C, ABCD], ["abcd", "bc"], "ca", "bc", 2),
    "the longer of two complete at once": ([C, ABCD], ["bcd", "abcd"], "c", "abcd", 2),
    "the longer one when the shorter comes later": ([AB, C, AB], ["abcd", "ca"], "ab", "ca", 3),
    "a character cut over four tokens": ([A, *BYTES, B], ["🤖"], "a", "🤖", 5),
    "a character in the middle": ([A, *BYTES, B, C], ["a🤖b"], "", "a🤖b", 6),
    "two characters of many bytes": ([ACUTE, *BYTES, A], ["é🤖"], "", "é🤖", 5),
    "after a character left half": ([*BYTES[:2], A, B], ["ab"], "\ufffd", "ab", 4),
    "special tokens in between": ([A, PAD, B, PAD, C], ["abc"], "", "abc", 5),
    "spaces": ([A, SPACE, SPACE_A], ["  a"], "a", "  a", 3),
    "its own beginning again": ([A, A, B, A, A, A, B], ["aaab"], "aab", "aaab", 7),
    "falling back to a shorter prefix": ([A, B, AB, C, A], ["abc"], "ab", "abc", 4),
    "a half character is none": ([A, *BYTES[:3], B], ["🤖"], None, None, 5),
    "nothing is found": ([A, B, C], ["abcd", "cc"], None, None, 3),
}


@pytest.fixture(scope="module")
def by_hand():
    """Each row's prompt is its text, stop strings and all: none of them counts there."""
    decoder = Decoder(TARGET, NGram(4), tokenizer=TOKENIZER, processors=(Copies(),))
    texts, strings = ([case[i] for case in HAND.values()] for i in (0, 1))
    result = decoder.generate(
        texts, stop=strings, max_new_tokens=[*map(len, texts)], stop_token_ids=[]
    )
    assert result.metrics.num_accepted_tokens
    return result


@pytest.mark.parametrize("name", HAND)
def test_a_text_ends_before_its_stop(by_hand, name):
    tokens, strings, text, stop, num = HAND[name]
    text = TOKENIZER.decode(tokens) if text is None else text
    reason = "length" if stop is None else "stop"
    assert searched(tokens, strings) == (tokens[:num], text, reason, stop)
    row = list(HAND).index(name)
    assert by_hand.tokens[row] == tokens[:num]
    assert by_hand.texts[row] == text
    assert (by_hand.finish_reasons[row], by_hand.stopped_by[row]) == (reason, stop)


def test_one_string_or_several_or_some_a_row(sides):
    strings = [["ab"], None, ["c", "ab"], [], "ab", ["c"], [" "], ("a", "b")]
    lists = [tuple([s] if isinstance(s, str) else s or ()) for s in strings]
    assert prepared(strings).stops == lists
    assert prepared("ab").stops == prepared(["ab"]).stops == [("ab",)] * ROWS
    assert prepared(["a", "b"]).stops == [("a", "b")] * ROWS
    assert prepared(None).stops == prepared([]).stops == [()] * ROWS
    assert prepared([]).program.stops is None
    bits = prepared(strings).request.sampling.stop_strings.tolist()
    of = {"ab": bits[0], "c": bits[5], " ": bits[6]}
    assert bits[1] == bits[3] == 0
    assert bits[2] == of["ab"] | of["c"]
    assert len({*of.values()}) == 3
    same = prepared([["a", "a"], *[None] * 7]).request.sampling.stop_strings
    assert same[0] == prepared("a").request.sampling.stop_strings[0]


MANY = [f"{n:02}" for n in range(MOST + 1)]
BAD = [
    *("", [""], ["a", ""], [["a"], [""], *[None] * 6]),
    *(3, 1.5, True, b"a", b"a" * ROWS, {"a"}, {"a": 1}, [1], [None, 1], ["a", 1]),
    *([[1]] * ROWS, [1] * ROWS, [["a"]] * 7, ["a", *[None] * 8], [["a", None]] * ROWS),
    *(MANY, [MANY] * ROWS, [MANY[4 * i : 4 * i + 5] for i in range(ROWS)]),
    *("\ud800", ["a\udfff"]),
]


@pytest.mark.parametrize("stop", BAD, ids=lambda x: repr(x)[:20])
def test_what_is_no_stop_string_is_refused_by_name(stop):
    with pytest.raises(ValueError, match="^stop: "):
        prepared(stop)


def test_as_many_strings_as_a_call_may_have_are_all_told_apart():
    stops = [tuple(MANY[4 * i : 4 * i + 4]) for i in range(ROWS)]
    stops[-1] = stops[-1][:3]
    bits = prepared(stops).request.sampling.stop_strings
    assert sum(bits.tolist()) == 2**MOST - 1
    assert min(bits.tolist()) > 0


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="^stop: .*tokenizer"):
        Decoder(TARGET).prepare([[A]], stop="a")
    assert Decoder(TARGET).prepare([[A]], stop=[]).stops == [()]


@pytest.fixture(scope="module")
def drops_a_space():
    """A SentencePiece tokenizer: the space before the first word of a text is not shown."""
    pieces = ["▁END", "▁", "E", "N", "D", "▁x"]
    backend = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend)


def test_a_stop_may_begin_with_the_space_that_the_beginning_of_a_text_does_not_show(drops_a_space):
    said = partial(answer, drops_a_space, stop_ids=set())
    assert said(tokens=[0], stops=["END"]) == ("", "END")
    assert said(tokens=[0], stops=[" END"]) == ("", " END")
    assert said(tokens=[1, 2, 3, 4], stops=[" END"]) == ("", " END")
    assert said(tokens=[1, 0], stops=["  END"]) == ("", "  END")
    assert said(tokens=[1, 0], stops=[" END"]) == ("", " END")
    assert said(tokens=[5, 0], stops=[" END"]) == ("x", " END")
    assert dropped_spaces(drops_a_space, [1, 2], "E") == " "
    assert dropped_spaces(drops_a_space, [2, 1], "E ") == ""


def test_a_stream_holds_such_a_stop_back_too(drops_a_space):
    """The text is a space that is not shown, then E, N, D: the target can say nothing else."""
    following = np.zeros((6, 6), np.float32)
    for token, after in ((0, 5), (5, 1), (1, 2), (2, 3), (3, 4), (4, 0)):
        following[token, after] = 30
    target = TableLM(jnp.broadcast_to(jnp.asarray(following), (6, 6, 6)))
    decoder = Decoder(target, tokenizer=drops_a_space, capacity=20)
    stream = decoder.stream([[5]] * 3, stop=[[" END"], [" ENX"], ["NX"]], max_new_tokens=4)
    texts = [""] * 3
    for piece in stream:
        texts[piece.row] += piece.text
    assert texts == stream.result.texts == ["", "END", "END"]
    assert stream.result.stopped_by == [" END", None, None]


# Streams.


def certain(tokens, stops):
    """Text that no token to come can take back: whole characters, and no beginning of a stop."""
    text = TOKENIZER.decode(tokens).rstrip("\ufffd")
    open_ended = (n for n in range(len(text)) if any(s.startswith(text[n:]) for s in stops))
    return text[: next(open_ended, len(text))]


def test_pieces_joined_are_the_result_and_come_as_soon_as_they_are_certain(sides):
    rng, decoder = np.random.default_rng(1), sides[0]
    cuts = 0
    for seed in range(12):
        free = plain_texts(sides, seed, 1.0)
        stops = sized(rng, free.texts)
        settings = {"stop": stops, "seed": seed, "temperature": 1.0, **SETTINGS}
        stream = decoder.stream(PROMPTS, rounds=int(rng.integers(1, 9)), **settings)
        texts, tokens = [""] * ROWS, [[] for _ in range(ROWS)]
        for piece in stream:
            row = piece.row
            texts[row] += piece.text
            tokens[row] += piece.tokens
            assert len(piece.drafted) == len(piece.tokens)
            if piece.finish_reason is None:
                assert texts[row] == certain(tokens[row], stops[row])
                assert not any(s in texts[row] for s in stops[row])
                cuts += texts[row] != TOKENIZER.decode(tokens[row])
            else:
                assert piece.finish_reason == stream.result.finish_reasons[row]
                assert texts[row] == stream.result.texts[row]
        expect(stream.result, free, stops)
        assert (texts, tokens) == (stream.result.texts, stream.result.tokens)
    assert cuts > 20  # text was held back


def test_a_string_held_off_by_the_least_number_of_tokens_is_shown(sides):
    free = plain_texts(sides, 0, 1.0)
    stops = sized(np.random.default_rng(2), free.texts)
    settings = {"stop": stops, "seed": 0, "temperature": 1.0, **SETTINGS, "min_new_tokens": 25}
    stream = sides[0].stream(PROMPTS, **settings)
    texts = [""] * ROWS
    for piece in stream:
        texts[piece.row] += piece.text
    assert texts == stream.result.texts
    expect(stream.result, free, stops, 25)
    assert all(len(row) >= 25 for row in stream.result.tokens)
    assert any(s in text for s, text in zip([r[0] for r in stops], texts, strict=True))


def test_what_may_be_the_beginning_of_a_stop_is_told_by_its_longest_one():
    assert held_back("xab", ["abc", "bd"]) == 2
    assert held_back("xb", ["abc", "bd"]) == 1
    assert held_back("abc", ["abc"]) == 0
    assert held_back("", ["abc"]) == held_back("abc", []) == 0


def test_a_stop_completed_earlier_is_none():
    assert first_complete("aXbX", ["X"], after=2) == (3, "X")
    assert first_complete("aX", ["X"], after=2) is None
    assert first_complete("abab", ["bab"], after=2) == (1, "bab")
