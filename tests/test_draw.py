"""Drawing: the law recorded is the law drawn from, and the row's limits hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from specjax import rng, sampling
from specjax.draw import RowDraw, fit_vocabulary
from specjax.testing.statistics import chi_square_p, sampling_values

V, DEPTH, ROWS, NUM = 5, 3, 20_000, 3
SIZE = 1e-6
LOGITS = jax.random.normal(jax.random.key(3), (V,)) * 1.5
KEYS = rng.row_keys(jnp.arange(ROWS, dtype=jnp.uint32))


@struct.dataclass
class ForbidLast:
    """Forbids the token that was drawn last on the path."""

    def init(self, tokens, length, row):
        return jnp.asarray(-1, jnp.int32)

    def advance(self, h, token):
        return token

    def apply(self, logits, h, row):
        return jnp.where(jnp.arange(logits.shape[0]) == h, -jnp.inf, logits)


def make_draw(cap=DEPTH, noise=None, processors=sampling.FILTERS, active=True, **values):
    """What the loop hands a drafter, for many rows that differ in their key."""
    sampled = sampling_values(ROWS, **values)
    tokens, length = jnp.zeros((ROWS, 1), jnp.int32), jnp.ones(ROWS, jnp.int32)
    return RowDraw(
        active=jnp.resize(jnp.asarray(active), ROWS),
        cap=jnp.resize(jnp.asarray(cap, jnp.int32), ROWS),
        key=rng.stream(KEYS, rng.DRAFT, length),
        sampling=sampled,
        states=sampling.start_processors(processors, tokens, length, sampled),
        noise=noise,
        records_law=noise is None,
        processors=processors,
        vocab_size=V,
        tree_depth=DEPTH,
    )


def children(draw, logits):
    """Three children of the root."""
    return draw(jnp.broadcast_to(logits, (ROWS, 1, logits.shape[0])), draw.root(), NUM)


def levels(draw, logits=LOGITS):
    """Three children of the root, and three of each of those."""
    return _levels(draw, logits)


@jax.jit
def _levels(draw, logits):
    first = children(draw, logits)
    node = jax.tree.map(lambda x: x[:, 0], first.children)
    second = draw(jnp.broadcast_to(logits, (ROWS, NUM, logits.shape[0])), node, NUM)
    return first, second


def pair_counts(pairs):
    """How often each pair of tokens came."""
    return np.bincount(np.asarray(pairs) @ [V, 1], minlength=V * V).reshape(V, V)


@pytest.mark.parametrize(
    "values",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 2.0, "min_p": 0.2}],
    ids=str,
)
def test_the_recorded_law_is_the_law_that_was_drawn_from(values):
    drawn, _ = levels(make_draw(**values))
    counts = np.bincount(np.asarray(drawn.tokens[:, 0, 0]), minlength=V)
    law = np.asarray(drawn.law[0, 0, 0], np.float64)
    assert chi_square_p(counts, law) > SIZE
    assert (law == 0).any() == bool(set(values) & {"top_k", "top_p", "min_p"})


def test_siblings_are_drawn_without_replacement_from_the_laws_they_record():
    drawn, _ = levels(make_draw(temperature=0.8))
    tokens = np.asarray(drawn.tokens[:, 0])
    assert all(len(set(row)) == NUM for row in tokens[:500].tolist())
    law = np.asarray(drawn.law[:, 0], np.float64)
    np.testing.assert_allclose(law.sum(-1), 1, rtol=1e-6)
    assert (law[np.arange(ROWS), 1, tokens[:, 0]] == 0).all()
    assert (law[np.arange(ROWS), 2, tokens[:, 1]] == 0).all()
    # The second law depends on the first token alone; together they give the law of pairs.
    second = np.stack([law[tokens[:, 0] == v, 1][0] for v in range(V)])
    assert chi_square_p(pair_counts(tokens[:, :2]), law[0, 0][:, None] * second) > SIZE


def test_every_child_goes_on_with_a_key_of_its_own():
    draw = make_draw()
    first, second = levels(draw)
    keys = [draw.key, first.children.key, second.children.key, rng.fold(draw.key, 0)]
    data = [np.asarray(jax.random.key_data(k[:100])).reshape(-1, 2) for k in keys]
    assert len(np.unique(np.concatenate(data), axis=0)) == 100 * (1 + 3 + 9 + 1)


def test_levels_of_one_path_are_independent():
    first, second = levels(make_draw())
    law = np.asarray(first.law[0, 0, 0], np.float64)
    pairs = jnp.stack([first.tokens[:, 0, 0], second.tokens[:, 0, 0]], axis=1)
    assert chi_square_p(pair_counts(pairs), law[:, None] * law) > SIZE


def test_children_carry_path_and_depth():
    first, second = levels(make_draw())
    assert (second.children.depth == 2).all()
    path = second.children.path
    np.testing.assert_array_equal(path[..., 1], second.tokens)
    np.testing.assert_array_equal(path[..., 2], 0)
    np.testing.assert_array_equal(path[:, :, 0, 0], first.tokens[:, 0])
    np.testing.assert_array_equal(path[:, :, 2, 0], first.tokens[:, 0])


def test_processors_follow_the_path_of_each_node():
    first, second = levels(make_draw(processors=(ForbidLast(),)))
    assert (second.tokens[..., 0] != first.tokens[:, 0]).all()
    last = first.tokens[:, 0, :, None]
    assert (jnp.take_along_axis(second.law[:, :, 0], last, axis=-1) == 0).all()


def test_the_score_is_the_log_probability_before_any_processor():
    drawn, _ = levels(make_draw(temperature=0.3, top_k=2))
    np.testing.assert_allclose(drawn.score, jax.nn.log_softmax(LOGITS)[drawn.tokens], rtol=1e-6)


def test_a_child_is_alive_within_the_cap_of_an_active_row_only():
    draw = make_draw(cap=[2, 1, 0, 2], active=[True, True, True, False])
    assert draw.root().alive[:4, 0].tolist() == [True, True, False, False]
    first, second = levels(draw)
    assert first.children.alive[:4, 0, 0].tolist() == [True, True, False, False]
    assert second.children.alive[:4, 0, 0].tolist() == [True, False, False, False]


def test_narrowing_stops_rows_and_widens_none():
    allowed = jnp.resize(jnp.asarray([True, False, True, False]), ROWS)
    draw = make_draw(cap=[2, 2, 0, 0]).narrow(allowed)
    assert draw.cap[:4].tolist() == [2, 0, 0, 0]
    assert draw.root().alive[:4, 0].tolist() == [True, False, False, False]


def test_a_child_beyond_the_support_is_not_alive():
    drawn, _ = levels(make_draw(top_k=2))
    assert drawn.children.alive[:, 0].all(0).tolist() == [True, True, False]
    assert not drawn.children.alive[:, 0, 2].any()
    nothing, _ = levels(make_draw(), LOGITS - jnp.inf)
    assert not nothing.children.alive.any()


def test_a_smaller_vocabulary_gives_no_mass_to_the_rest():
    drawn = jax.jit(children)(make_draw(), LOGITS[:3])
    assert drawn.law.shape[-1] == V
    assert (drawn.law[..., 3:] == 0).all()
    assert (drawn.tokens[..., :2] < 3).all()


def test_a_padded_vocabulary_is_cut():
    padded = jnp.concatenate([LOGITS, jnp.full(3, 50.0)])
    np.testing.assert_array_equal(fit_vocabulary(padded, V), LOGITS)
    drawn = jax.jit(children)(make_draw(), padded)
    assert (drawn.tokens < V).all()
    np.testing.assert_array_equal(drawn.law, levels(make_draw())[0].law)


def test_coupled_draws_take_the_noise_of_their_depth():
    noise = rng.position_noise(KEYS, jnp.arange(ROWS), DEPTH + 1, V)
    draw = make_draw(noise=noise, temperature=0.7)
    first, second = levels(draw)
    assert not draw.records_law
    assert first.law is None
    ranked = np.argsort(-(np.asarray(LOGITS) / np.float32(0.7) + np.asarray(noise)), axis=-1)
    np.testing.assert_array_equal(first.tokens[:, 0], ranked[:, 0, :NUM])
    np.testing.assert_array_equal(second.tokens, ranked[:, [1] * NUM, :NUM])


def test_greedy_siblings_are_the_largest_logits_in_order():
    drawn, _ = levels(make_draw(temperature=0.0))
    order = np.argsort(-np.asarray(LOGITS))[:NUM]
    assert (drawn.tokens[:, 0] == order).all()
    np.testing.assert_array_equal(drawn.law[7, 0], np.eye(V)[order])


def test_rows_sample_with_their_own_temperature():
    draw = make_draw()
    mixed = jnp.arange(ROWS, dtype=jnp.float32) % 2
    drawn, _ = levels(draw.replace(sampling=draw.sampling.replace(temperature=mixed)))
    assert (drawn.tokens[::2, 0, 0] == LOGITS.argmax()).all()
    np.testing.assert_array_equal(drawn.tokens[1::2], levels(draw)[0].tokens[1::2])
