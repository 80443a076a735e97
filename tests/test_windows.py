"""Layers that see a window: rings past the wrap, in chains and trees, and what they save."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jaxtyping import Array, Int

from specjax import Decoder, loop
from specjax.cache import KVCache, move_slots, write_slots
from specjax.drafters import Chain, DraftModel, NGram
from specjax.models import LayerKind
from specjax.models.rope import Rope
from specjax.nn import attention, visible
from specjax.testing import check_target, tiny_lm
from specjax.types import Draft

WINDOW = 6
LAYERS = [LayerKind(Rope(8), WINDOW), LayerKind(Rope(8)), LayerKind(None, WINDOW + 1)]
TARGET = tiny_lm(jax.random.key(0), layers=LAYERS)
PROMPTS = [[3, 4, 5, 3, 4, 5, 3, 4], [7] * 40, [9, 8]]


@pytest.mark.slow
def test_a_window_keeps_the_promises_of_a_target():
    check_target(TARGET)


def naive(query, keys, values, position, window, cap):
    """One query of one head over all keys, those too old or too new left out."""
    place = np.arange(len(keys))
    score = keys @ query * query.size**-0.5
    score = np.tanh(score / cap) * cap
    score = np.where((place <= position) & (place > position - window), score, -np.inf)
    weight = np.exp(score - score.max())
    return weight @ values / weight.sum()


@pytest.mark.parametrize("start", [0, 3, 9, 40])
def test_attention_in_a_ring_equals_attention_over_all(start):
    length, size, cap = 4, WINDOW + 4, 2.0
    draw = np.random.default_rng(start)
    total = start + length
    keys, values = draw.normal(size=(2, total, 8)).astype(np.float32)
    query = draw.normal(size=(length, 8)).astype(np.float32)
    ring = jnp.full((2, 1, size, 8), jnp.nan, jnp.float32)  # nothing unwritten may be seen
    for first in range(0, total, 4):
        part = slice(first, min(first + 4, total))
        at, num = jnp.array([first]), jnp.array([part.stop - first])
        new = [jnp.pad(x[None, part], ((0, 0), (0, 4 - int(num[0])), (0, 0)))
               for x in (keys, values)]  # fmt: skip
        ring = jnp.stack(
            [write_slots(x, y, at, num, ring=True) for x, y in zip(ring, new, strict=True)]
        )
    found = attention(
        jnp.asarray(query)[None, :, None],
        *ring,
        jnp.array([start]),
        jnp.array([length]),
        window=WINDOW,
        cap=cap,
        block=4,
    )
    expected = [naive(query[t], keys, values, start + t, WINDOW, cap) for t in range(length)]
    np.testing.assert_allclose(found[0, :, 0], expected, atol=1e-5)


@pytest.mark.parametrize("start", [0, 4, 30])
def test_a_path_longer_than_the_window_sees_what_a_chain_sees(start):
    length, slots = WINDOW + 4, jnp.arange(48)[None]
    at, path = jnp.array([start]), jnp.tril(jnp.ones((1, length, length), bool))
    chain = visible(slots, at, length, window=WINDOW)
    np.testing.assert_array_equal(visible(slots, at, length, path, WINDOW), chain)
    assert chain[0].sum(-1).tolist() == [min(start + t + 1, WINDOW) for t in range(length)]


def test_a_path_in_a_ring_is_moved_around_its_end():
    ring = jnp.arange(10.0)[None] + 100
    moved = move_slots(ring, jnp.array([28]), jnp.array([[2, 3]]), ring=True)
    want = np.arange(10.0) + 100  # slots 30 and 31, at 0 and 1, go to 29 and 30, at 9 and 0
    want[9], want[0] = 100, 101
    np.testing.assert_array_equal(moved[0], want)


def test_a_ring_is_as_long_as_its_window_and_what_may_be_ahead():
    cache = TARGET.init_cache(1, 500, scratch=9)
    assert [keys.shape[1] for keys, _ in cache.layers] == [WINDOW + 9, 500, WINDOW + 10]
    assert [keys.shape[1] for keys, _ in TARGET.init_cache(1, 8, scratch=9).layers] == [8, 8, 8]


def test_a_pass_wider_than_the_scratch_is_refused():
    cache = KVCache.zeros(1, 500, 2, 8, jnp.float32, windows=[WINDOW], scratch=3)
    new = jnp.zeros((1, 4, 2, 8))
    with pytest.raises(ValueError, match="over 4 positions is wider than the 3.*scratch=4"):
        cache.write(0, (new, new), jnp.array([0]), jnp.array([4]))


@struct.dataclass
class Fan(Chain):
    """A wrong child and the one that followed last time, each with its follower: the path moves."""

    followers: Int[Array, " V"]
    draft_length: int = struct.field(pytree_node=False, default=2)

    depth = 2
    num_nodes = 4
    tree_depth = 2

    def propose(self, target, cache, state, context, draw, *, width):
        newest = context.newest()[:, 0]
        right = self.followers[newest]
        wrong = (right + 1) % len(self.followers)
        nodes = [wrong, right, self.followers[wrong], self.followers[right]]
        tokens = jnp.stack(nodes, axis=1)
        parent = jnp.broadcast_to(jnp.array([0, 0, 1, 2], jnp.int32), tokens.shape)
        valid = jnp.broadcast_to(draw.active[:, None], tokens.shape)
        return Draft(tokens, parent, valid), state, cache


DRAFTERS = {
    "n-gram": NGram(3),
    "itself": DraftModel(TARGET, 3, catch_up=4),
    "draft model": DraftModel(tiny_lm(jax.random.key(1), layers=LAYERS), 3, catch_up=4),
}
SLOW = {"draft model": pytest.mark.slow}


@pytest.fixture(scope="module")
def plain():
    """Greedy tokens far beyond the window, decoded with every slot kept."""
    program = Decoder(TARGET, prefill_chunk=8)
    return program.generate(PROMPTS, max_new_tokens=40).tokens


@pytest.mark.parametrize("name", [pytest.param(x, marks=SLOW.get(x, ())) for x in DRAFTERS])
def test_speculation_past_the_wrap_changes_no_token(name, plain):
    decoder = Decoder(TARGET, DRAFTERS[name], prefill_chunk=8)
    result = decoder.generate(PROMPTS, max_new_tokens=40)
    assert result.tokens == plain
    if name == "itself":
        assert result.metrics.draft_acceptance_rate > 0.99


def test_a_tree_past_the_wrap_changes_no_token(plain):
    followers = np.zeros(TARGET.vocab_size, np.int32)
    for row in plain:
        followers[row[:-1]] = row[1:]
    decoder = Decoder(TARGET, Fan(jnp.asarray(followers)), prefill_chunk=8)
    result = decoder.generate(PROMPTS, max_new_tokens=40)
    assert result.tokens == plain
    assert result.metrics.acceptance_histogram[2] > 10


@pytest.mark.slow
def test_a_resumed_call_goes_on_in_its_rings(plain):
    decoder = Decoder(TARGET, NGram(3), prefill_chunk=8)
    first = decoder.generate(PROMPTS, max_new_tokens=11, keep_state=True)
    assert decoder.resume(first, max_new_tokens=29).tokens == plain


def test_without_a_chunk_nothing_is_forgotten():
    tokens = jnp.zeros((1, 200), jnp.int32)
    program = Decoder(TARGET, NGram(3)).program
    values = Decoder(TARGET).prepare([[1]]).request.sampling
    state = jax.eval_shape(
        lambda: loop.start(
            program,
            tokens,
            jnp.array([5], jnp.int32),
            sampling_values=values,
            key=jax.random.key(0)[None],
            limit=jnp.array([9], jnp.int32),
        )
    )
    assert {x.shape[1] for pair in state.cache.layers for x in pair} == {204}
