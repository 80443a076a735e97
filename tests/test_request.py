"""From what a user asks for to arrays: layout, buckets, and every bad value by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.prompts import as_batch, encode
from specjax.request import bucket, build

V = 10
NO_TEXT = None


def request(rows=((1, 2, 3), (4,)), longest=200, **settings):
    settings = {"max_new_tokens": 5, **settings}
    return build(rows, settings, vocab_size=V, depth=3, longest=longest)


def test_buckets_hold_what_they_are_for_and_waste_at_most_half():
    sizes = [bucket(n, 128) for n in range(1, 3000)]
    assert all(size >= n for n, size in enumerate(sizes, 1))
    assert all(size < 1.5 * n for n, size in enumerate(sizes, 1) if n > 128)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 10  # so few programs serve all lengths


def test_rows_are_laid_out_from_the_left_with_their_own_limits():
    out = request()
    assert out.tokens.shape == (2, 128)
    assert out.tokens[:, :4].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert out.length.tolist() == [3, 1]
    assert out.limit.tolist() == [8, 6]


def test_no_setting_changes_shape_or_type():
    """Or it would compile anew."""
    shape = lambda r: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(r)]  # noqa: E731
    plain = request()
    other = request(
        ([5] * 40, [6] * 7),
        max_new_tokens=np.int64(80),
        temperature=1,
        top_k=np.int32(3),
        top_p=np.float64(0.5),
        min_p=[0.1, 0],
        stop_token_ids=[1, 2, 3],
        seed=None,
    )
    assert shape(plain) == shape(other)
    assert not any(x.weak_type for x in jax.tree.leaves(plain))


def test_values_are_one_for_all_rows_or_one_a_row():
    out = request(temperature=[0.5, 2], top_k=4).sampling
    assert out.temperature.tolist() == [0.5, 2]
    assert out.top_k.tolist() == [4, 4]


def test_stop_ids_are_padded_with_what_no_token_is():
    assert request(stop_token_ids=[7, 2]).sampling.stop_ids.tolist() == [[7, 2, -1, -1]] * 2
    assert request(stop_token_ids=()).sampling.stop_ids.tolist() == [[-1] * 4] * 2
    assert request(stop_token_ids=range(5)).sampling.stop_ids.shape == (2, 6)


@pytest.mark.parametrize("ids", [{1, 2}, np.array([1, 2]), jnp.array([1, 2]), (1, 2)], ids=repr)
def test_stop_ids_may_come_in_any_collection(ids):
    assert sorted(request(stop_token_ids=ids).sampling.stop_ids[0].tolist()) == [-1, -1, 1, 2]


def test_a_single_stop_id_needs_no_list():
    assert request(stop_token_ids=2).sampling.stop_ids.tolist() == [[2, -1, -1, -1]] * 2


def test_seeds_are_those_that_will_be_used():
    assert request(seed=4).seeds.tolist() == [4, 5]
    assert request(seed=[9, 9]).seeds.tolist() == [9, 9]
    assert request(seed=2**32 - 2).seeds.tolist() == [2**32 - 2, 2**32 - 1]


BAD = [
    ("max_new_tokens", [-1, 1.5, None, "3", True]),
    (
        "temperature",
        [-0.1, float("nan"), float("inf"), 1e300, "hot", None, True, [1.0], [[1.0, 1]]],
    ),
    ("top_k", [-1, 1.5, 2**31, 2**70, None, [1, 2, 3]]),
    ("top_p", [0.0, -0.5, 1.01, float("nan"), "all"]),
    ("min_p", [-0.1, 1.1, float("nan"), None]),
    ("stop_token_ids", [[V], [-1], [1.5], "stop", [None], [True], [[1], [2], [3]], [[1], 2.5]]),
    ("seed", [-1, 2**32, 1.5, [1], [1, 2, 3], "ab", True, [0, -1], [None, -1]]),
    ("max_length", [0, -1, 1.5, "3", [9]]),
    ("min_new_tokens", [-1, 1.5, None, [1, 2, 3]]),
    ("repetition_penalty", [0, -1.0, float("nan"), float("inf"), 1e31, "much", None, [1.0]]),
    ("presence_penalty", [float("nan"), float("-inf"), 1e31, None]),
    ("frequency_penalty", [float("nan"), float("inf"), -1e31, [[1.0, 1.0]]]),
    ("no_repeat_ngram_size", [-1, 2.5, None, 2**31]),
    (
        "logit_bias",
        [{V: 1.0}, {-1: 1.0}, {1: "much"}, {1: float("nan")}, {1: float("inf")}, [{}], 3],
    ),
    ("logit_bias", [{"1": 1.0}, {1: True}, {1.0: 1.0}, [{}, 3]]),
    ("allowed_tokens", [[], [V], [1.5], "a", [[1], []], [[1], [2], [3]]]),
    ("banned_tokens", [[V], [-1], "a", [[1], [V]], [[1]]]),
    ("draft_length", [-1, 1.5, "2", [1], [1, 2, 3]]),
    ("n", [0, -1, 1.5, None, True, [1, 2], 2**16 + 1, 2**40]),
    ("logprobs", [-1, 1.5, "all", [1, 2], V + 1]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD for value in values]
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}: "):
        request(**{name: value})


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"prompts: .* 3 tokens.*max_new_tokens=5.* 7 "):
        request(longest=7)
    assert request(longest=8).limit[0] == 8


class Letters:
    """A tokenizer of ten letters; a chat is its last message."""

    def encode(self, text, *, add_special_tokens=True):
        return ["abcdefghij".index(c) for c in text]

    def apply_chat_template(self, messages):
        return self.encode(messages[-1]["content"])


ONE = [
    "cab",
    [2, 0, 1],
    (2, 0, 1),
    np.array([2, 0, 1]),
    jnp.array([2, 0, 1]),
    [np.int64(2), 0, 1],
    [{"role": "user", "content": "cab"}],
]


@pytest.mark.parametrize("prompt", ONE, ids=lambda p: type(p).__name__)
def test_a_prompt_of_any_kind_is_one_row(prompt):
    assert encode(prompt, Letters(), V) == [[2, 0, 1]]
    assert len(as_batch(prompt)) == 1


def test_kinds_may_be_mixed_in_a_batch():
    assert encode(ONE, Letters(), V) == [[2, 0, 1]] * len(ONE)
    assert encode(np.array([[1, 2], [3, 4]]), Letters(), V) == [[1, 2], [3, 4]]


BAD_PROMPTS = [
    [],
    "",
    [[]],
    ["cab", ""],
    [[1], []],
    [V],
    [-1],
    [[1], [2, V]],
    [1.5],
    [1, "a"],
    [True],
    None,
    [None],
    5.0,
    [{"role": "user", "content": "a"}, 3],
]


@pytest.mark.parametrize("prompts", BAD_PROMPTS, ids=repr)
def test_a_bad_prompt_is_refused_by_name(prompts):
    with pytest.raises(ValueError, match="^prompts: "):
        encode(prompts, Letters(), V)


def test_the_bad_prompt_of_a_batch_is_numbered():
    with pytest.raises(ValueError, match="prompt 1 has token id 10, outside the vocabulary of 10"):
        encode([[1], [2, V]], Letters(), V)


@pytest.mark.parametrize("prompt", ["a", [{"role": "user", "content": "a"}]], ids=["text", "chat"])
def test_text_without_a_tokenizer_is_refused(prompt):
    with pytest.raises(ValueError, match="prompts: .*tokenizer"):
        encode(prompt, NO_TEXT, V)
