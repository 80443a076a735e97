"""Any settings at all: a call gives a result that keeps every promise, or names what is wrong."""

import functools
import math
import tempfile

import hypothesis.strategies as st
import jax
import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

from specjax import Decoder, compiled
from specjax.drafters import NGram
from specjax.settings import Settings
from specjax.testing import TableLM

set_hypothesis_home_dir(tempfile.gettempdir())  # nothing is kept, but a folder is made

TOKENIZER = byte_tokenizer(["<end>"], ["a", "b", "c", " ", "ab", "bc"], cut="🤖", stop_ids=[0])
V, ROWS, CAPACITY = 11, 2, 60
TARGET = TableLM.random(jax.random.key(0), V)
DECODER = Decoder(TARGET, NGram(3), tokenizer=TOKENIZER, capacity=CAPACITY)
NEVER = "\0" * 16  # long enough that the automaton has one size whatever comes with it
STOPS = [NEVER, "ab", "a", "b", "🤖"]
NEUTRAL = {
    "max_new_tokens": 8,
    "max_length": None,
    "min_new_tokens": 0,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram_size": 0,
    "logit_bias": {},
    "allowed_tokens": None,
    "banned_tokens": None,
    "grammar": None,
    "stop": [NEVER],
    "stop_token_ids": None,
    "draft_length": None,
    "seed": 0,
    "n": 1,
    "logprobs": 2,
}
"""Every setting is in use, though it changes nothing: one program serves every case."""


def each(values):
    """One value for all rows or one for each."""
    return values | st.lists(values, min_size=ROWS, max_size=ROWS)


def whole(low, high):
    return each(st.integers(low, high))


def number(low, high):
    return each(st.floats(low, high) | st.integers(math.ceil(low), math.floor(high)))


IDS = st.lists(st.integers(0, V - 1), max_size=4)
ROWS_OF_IDS = IDS | st.lists(st.none() | IDS, min_size=ROWS, max_size=ROWS)
SOME_IDS = st.lists(st.integers(0, V - 1), min_size=1, max_size=V)
AMOUNT = st.floats(-1e30, 1e30) | st.floats(-5, 5) | st.just(-math.inf)
BIASES = st.dictionaries(st.integers(0, V - 1), AMOUNT, max_size=V)
STRINGS = st.lists(st.sampled_from(STOPS), max_size=2).map(lambda s: [NEVER, *s])
VALID = {
    "max_new_tokens": whole(0, 20),
    "max_length": st.none() | whole(1, 30),
    "min_new_tokens": whole(0, 30),
    "temperature": number(0.001, 5) | each(st.sampled_from([0, 1e-60, 1e-30, 1e-6, 1, 3e38])),
    "top_k": whole(0, 2 * V) | st.just(2**31 - 1),
    "top_p": number(1e-3, 1) | st.just(1e-30),
    "min_p": number(0, 1),
    "repetition_penalty": number(0.125, 8) | each(st.sampled_from([1e-30, 1e-9, 1e9, 1e30])),
    "presence_penalty": number(-3, 3) | each(st.sampled_from([-1e30, 1e30])),
    "frequency_penalty": number(-3, 3) | each(st.sampled_from([-1e30, 1e30])),
    "no_repeat_ngram_size": whole(0, 5) | st.just(2**31 - 1),
    "logit_bias": BIASES | st.lists(st.none() | BIASES, min_size=ROWS, max_size=ROWS),
    "allowed_tokens": SOME_IDS | st.lists(st.none() | SOME_IDS, min_size=ROWS, max_size=ROWS),
    "banned_tokens": ROWS_OF_IDS,
    "stop": STRINGS | st.lists(STRINGS, min_size=ROWS, max_size=ROWS),
    "stop_token_ids": ROWS_OF_IDS,
    "draft_length": st.none() | whole(0, 5),
    "seed": st.none() | each(st.integers(0, 2**32 - ROWS)),
}
NO_VALUE = st.sampled_from(
    [
        *(-1, -0.5, 1.5, V, 2**31, 2**40, 1e31, -1e31, math.nan, math.inf, -math.inf, 10**400),
        *(None, True, "", "much", b"ab", object(), {}, {"a": 1}, {1: "a"}, {V: 1.0}, set(), {1, 2}),
        *([], [None], [1], [1, 2, 3], [[]], [[1], [2, 3]], [[1], None], [1, "a"], [None, -1]),
        *([V], ["a", 1], [{}, 3], [{1: 1.0}, {}], [[[1]]], (1, 2), [math.nan, 1], [1e400, 0.5]),
    ]
)


def prompts():
    tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=20)
    return st.lists(tokens, min_size=ROWS, max_size=ROWS)


@st.composite
def valid(draw):
    names = draw(st.lists(st.sampled_from(sorted(VALID)), unique=True, max_size=6))
    return {name: draw(VALID[name]) for name in names}


def a_row(value, row):
    """The value of a row, whether there is one for all or one for each."""
    return value[row] if isinstance(value, list) else value


def ids_of(value, row):
    """Token ids of a row; None where the row has none of its own."""
    if isinstance(value, list) and any(v is None or isinstance(v, list) for v in value):
        return value[row]
    return value


@functools.cache
def traced():
    """How many programs there are once the only one of this file is."""
    DECODER.generate([[1], [2]], **NEUTRAL)
    return compiled.generate._cache_size()


def generate(rows, given):
    traces = traced()
    result = DECODER.generate(rows, **given)
    assert compiled.generate._cache_size() == traces
    return result


def budget_of(given, rows, row):
    budget = a_row(given["max_new_tokens"], row)
    total = given["max_length"]
    return budget if total is None else max(min(budget, a_row(total, row) - len(rows[row])), 0)


def check(result, rows, given):
    assert len(result.tokens) == ROWS
    for row in range(ROWS):
        check_end(result, rows, given, row)
        check_tokens(result, rows, given, row)
        check_numbers(result, given, row)
    assert result.metrics.num_tokens == sum(map(len, result.tokens))


def check_end(result, rows, given, row):
    tokens, reason = result.tokens[row], result.finish_reasons[row]
    budget, least = budget_of(given, rows, row), a_row(given["min_new_tokens"], row)
    own = ids_of(given["stop_token_ids"], row)
    stops = [0] if own is None else own
    stop = result.stopped_by[row]
    assert reason in ("stop", "length", "dead_end")
    assert len(tokens) <= budget
    assert (len(tokens) == budget) >= (reason == "length")
    assert not set(tokens[:-1]) & set(stops)
    assert (stop is not None) == (reason == "stop")
    if isinstance(stop, str):
        assert stop not in result.texts[row] or least > 0
        assert stop in TOKENIZER.decode(tokens)
    elif stop is not None:
        assert tokens[-1] == stop
        assert stop in stops
    if reason == "stop":
        assert len(tokens) >= least
    else:
        assert not set(tokens) & set(stops)
        assert result.texts[row] == TOKENIZER.decode(tokens)
    assert len(tokens) == len(result.drafted[row]) == result.row_metrics[row].num_tokens


def check_tokens(result, rows, given, row):
    tokens = result.tokens[row]
    allowed = ids_of(given["allowed_tokens"], row)
    banned = set(ids_of(given["banned_tokens"], row) or [])
    biases = given["logit_bias"]
    biases = (biases if isinstance(biases, dict) else biases[row]) or {}
    banned |= {token for token, amount in biases.items() if amount == -math.inf}
    assert all(0 <= token < V for token in tokens)
    assert not set(tokens) & banned
    assert allowed is None or set(tokens) <= set(allowed)
    size, text = a_row(given["no_repeat_ngram_size"], row), rows[row] + tokens
    if size:
        grams = [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]
        new = grams[-len(tokens) :] if tokens else []
        assert all(gram not in grams[: len(grams) - len(new) + i] for i, gram in enumerate(new))
    cap = a_row(given["draft_length"], row)
    if cap is not None:
        assert not any(result.row_metrics[row].acceptance_histogram[cap + 1 :])


def check_numbers(result, given, row):
    """Log-probabilities are numbers, of what was possible."""
    num = len(result.tokens[row])
    for values in (result.logprobs[row], result.processed_logprobs[row]):
        assert len(values) == num
        assert all(math.isfinite(x) and x <= 1e-6 for x in values)
    assert all(len(top) == 2 for top in result.top_logprobs[row])
    assert all(math.isfinite(x) for top in result.top_logprobs[row] for x in top.values())
    metrics = result.row_metrics[row].to_dict()
    if num:
        assert 1 <= metrics["mean_acceptance_length"] <= 4
        assert metrics["num_clipped_tokens"] >= 0
    if a_row(given["top_k"], row) == 1:
        assert all(x > -math.log(V) - 1e-6 for x in result.processed_logprobs[row])


def holds(rows, given):
    given = NEUTRAL | given
    check(generate(rows, given), rows, given)


@st.composite
def mixed(draw):
    """Settings of which one, more or none is no good."""
    given = draw(valid())
    names = draw(st.lists(st.sampled_from(sorted(NEUTRAL)), min_size=1, max_size=2, unique=True))
    return given | {name: draw(NO_VALUE) for name in names}


def shapes(call):
    leaves, structure = jax.tree.flatten((call.program, call.request))
    return structure, [x.shape for x in leaves]


def is_named(rows, given):
    """What is refused is named first; the rest runs, where it is the program of all the others."""
    names = tuple(f"{name}: " for name in (*Settings.__annotations__, "prompts"))
    given, refused = NEUTRAL | given, None
    try:
        call = DECODER.prepare(rows, **given)
    except ValueError as error:
        refused = str(error)
    if refused is not None:
        assert refused.startswith(names), refused
    elif shapes(call) == shapes(DECODER.prepare(rows, **NEUTRAL)):
        result = DECODER.generate(rows, **given)
        for row in range(ROWS):
            check_numbers(result, given | {"top_k": 0}, row)
            assert len(result.tokens[row]) <= int(
                call.request.limit[row] - call.request.length[row]
            )


CI = settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
LONG = settings(CI, max_examples=5_000, derandomize=False)


@CI
@given(prompts(), valid())
def test_valid_settings_give_what_they_promise(rows, given):
    holds(rows, given)


@CI
@given(prompts(), mixed())
def test_settings_that_are_no_good_are_named(rows, given):
    is_named(rows, given)


@pytest.mark.slow
@LONG
@given(prompts(), valid())
def test_thousands_of_valid_settings_give_what_they_promise(rows, given):
    holds(rows, given)


@pytest.mark.slow
@LONG
@given(prompts(), mixed())
def test_thousands_of_settings_that_are_no_good_are_named(rows, given):
    is_named(rows, given)


@pytest.mark.parametrize("name", ["max_tokens", "temprature", "top_n", "", "drafter"])
def test_a_setting_that_does_not_exist_is_a_type_error_that_names_it(name):
    with pytest.raises(TypeError, match=f"^{name}: there is no such setting"):
        DECODER.generate([1, 2], **{name: 1})


def test_top_k_of_one_is_the_likeliest_token_whatever_the_rest():
    rows = [[1, 2, 3], [4]]
    greedy = generate(rows, NEUTRAL | {"logit_bias": {3: 1.0}, "frequency_penalty": 0.5})
    hot = {"temperature": 5.0, "top_k": 1, "seed": None}
    same = generate(rows, NEUTRAL | {"logit_bias": {3: 1.0}, "frequency_penalty": 0.5} | hot)
    assert same.tokens == greedy.tokens


def test_a_row_whose_every_token_is_banned_is_a_dead_end():
    everything = dict.fromkeys(range(V), -math.inf)
    result = generate([[1], [2]], NEUTRAL | {"logit_bias": [everything, None]})
    assert result.finish_reasons == ["dead_end", "length"]
    assert result.tokens[0] == []
    assert result.texts[0] == ""
    assert math.isnan(result.row_metrics[0].mean_acceptance_length)
