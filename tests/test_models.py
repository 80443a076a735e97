"""What every user of a decoder relies on: the promises of Target.extend."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import Config, DecoderLM, LayerKind, random_weights
from specjax.models.rope import Rope
from specjax.nn import BLOCK


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


CONFIG = Config(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    layers=(LayerKind(Rope(8)),) * 3,
    tied=True,
)
TARGET = DecoderLM(random_weights(CONFIG, jax.random.key(0)), CONFIG)
CAPACITY = BLOCK + 20
CLOSE = {"atol": 2e-5, "rtol": 0}


@jax.jit
def logits_and_cache(target, tokens, start, cache, count, positions=None, mask=None):
    hidden, cache, _ = target.extend(
        tokens, start, cache, count=count, positions=positions, mask=mask
    )
    return target.unembed(hidden), cache


def integers(*values):
    return jnp.array(values, jnp.int32)


def sample_tokens(rows, length, seed=1):
    return jax.random.randint(jax.random.key(seed), (rows, length), 0, 61, jnp.int32)


def prefix(tokens, target=TARGET, capacity=CAPACITY):
    """A cache that holds these tokens, all rows alike in length."""
    rows, length = tokens.shape
    cache = target.init_cache(rows, capacity)
    full = jnp.full(rows, length, jnp.int32)
    return logits_and_cache(target, tokens, jnp.zeros(rows, jnp.int32), cache, full)[1]


def test_one_pass_equals_many_of_one_token_across_a_block_boundary():
    start = BLOCK - 3
    cache = prefix(sample_tokens(2, start, seed=2))
    tokens, at, count = sample_tokens(2, 7), integers(start, start), integers(7, 7)
    whole, after = logits_and_cache(TARGET, tokens, at, cache, count)
    for t in range(7):
        one, cache = logits_and_cache(TARGET, tokens[:, t : t + 1], at + t, cache, integers(1, 1))
        np.testing.assert_allclose(one[:, 0], whole[:, t], **CLOSE)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **CLOSE), cache, after)


def test_later_tokens_change_no_earlier_logits():
    cache, at, count = TARGET.init_cache(1, 16), integers(0), integers(8)
    tokens = sample_tokens(1, 8)
    changed = tokens.at[:, 5:].set((tokens[:, 5:] + 1) % 61)
    first, _ = logits_and_cache(TARGET, tokens, at, cache, count)
    second, _ = logits_and_cache(TARGET, changed, at, cache, count)
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert jnp.abs(first[:, 5:] - second[:, 5:]).min(axis=-1).max() > 0


def test_a_ragged_row_equals_the_row_alone():
    history, tokens = sample_tokens(3, BLOCK + 4, seed=3), sample_tokens(3, 4)
    cache, start, count = prefix(history), integers(2, 9, BLOCK + 4), integers(4, 2, 3)
    together, _ = logits_and_cache(TARGET, tokens, start, cache, count)
    for row in range(3):
        alone = jax.tree.map(lambda x, r=row: x[r : r + 1], (tokens, start, cache, count))
        one, _ = logits_and_cache(TARGET, *alone)
        used = count[row]
        np.testing.assert_allclose(one[0, :used], together[row, :used], **CLOSE)
    assert bool(jnp.isfinite(together).all())


def test_nothing_is_written_at_or_beyond_count():
    cache = prefix(sample_tokens(3, 30, seed=3))
    start, count = integers(5, 9, CAPACITY - 1), integers(0, 2, 1)
    out, after = logits_and_cache(TARGET, sample_tokens(3, 4), start, cache, count)
    for before, now in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        changed = (before != now).any(axis=2)
        assert not changed[0].any()
        assert jnp.flatnonzero(changed[1]).tolist() == [9, 10]
        assert jnp.flatnonzero(changed[2]).tolist() == [CAPACITY - 1]
    assert bool(jnp.isfinite(out).all())


@pytest.mark.parametrize("poison", [1e9, -1e9, jnp.nan, jnp.inf])
def test_poison_in_scratch_slots_changes_nothing(poison):
    cache, tokens = prefix(sample_tokens(2, 12, seed=4)), sample_tokens(2, 3)
    start, count = integers(12, 5), integers(3, 2)
    poisoned = jax.tree.map(
        lambda x: jnp.where(jnp.arange(CAPACITY)[:, None] >= start[0], poison, x), cache
    )
    poisoned = jax.tree.map(lambda x: x.at[1, 5:].set(poison), poisoned)
    clean, _ = logits_and_cache(TARGET, tokens, start, cache, count)
    dirty, _ = logits_and_cache(TARGET, tokens, start, poisoned, count)
    used = jnp.arange(3) < count[:, None]
    np.testing.assert_array_equal(clean[used], dirty[used])


#        1
#      2   3
#    4    5  6      node 0 is the root of all
PARENT = (-1, 0, 1, 1, 2, 3, 3)


def ancestry():
    """Whether node t sees node r: itself and its ancestors."""
    sees = np.eye(len(PARENT), dtype=bool)
    for node, parent in enumerate(PARENT[1:], start=1):
        sees[node] |= sees[parent]
    return sees


def tree_positions(nodes, start):
    depth = ancestry().sum(1) - 1
    return jnp.asarray(start + depth[nodes][None], jnp.int32)


@pytest.mark.parametrize("start", [0, 6, BLOCK - 4])
def test_every_path_of_a_tree_equals_a_chain(start):
    cache = prefix(sample_tokens(1, start, seed=5)) if start else TARGET.init_cache(1, CAPACITY)
    tokens = sample_tokens(1, len(PARENT))
    mask, nodes = jnp.asarray(ancestry())[None], np.arange(len(PARENT))
    tree, _ = logits_and_cache(
        TARGET, tokens, integers(start), cache, integers(7), tree_positions(nodes, start), mask
    )
    for leaf in (4, 5, 6):
        path = np.flatnonzero(ancestry()[leaf])
        chain, _ = logits_and_cache(
            TARGET, tokens[:, path], integers(start), cache, integers(len(path))
        )
        np.testing.assert_allclose(tree[:, path], chain, **CLOSE)


def test_a_tree_fed_level_by_level_equals_the_tree_fed_at_once():
    start = 6
    cache, tokens = prefix(sample_tokens(1, start, seed=5)), sample_tokens(1, len(PARENT))
    mask, nodes = jnp.asarray(ancestry())[None], np.arange(len(PARENT))
    whole, _ = logits_and_cache(
        TARGET, tokens, integers(start), cache, integers(7), tree_positions(nodes, start), mask
    )
    for level in (slice(0, 2), slice(2, 4), slice(4, 7)):
        fed = nodes[level]
        part, cache = logits_and_cache(
            TARGET,
            tokens[:, level],
            integers(start + level.start),
            cache,
            integers(len(fed)),
            tree_positions(fed, start),
            mask[:, level, : level.stop],
        )
        np.testing.assert_allclose(part, whole[:, level], **CLOSE)


extend = jax.jit(DecoderLM.extend, static_argnames=("layers", "capture"))


def test_layers_resume_from_hidden_states():
    tokens, start, count = sample_tokens(2, 5), integers(0, 0), integers(5, 3)
    whole, full, _ = extend(TARGET, tokens, start, TARGET.init_cache(2, 9), count=count)
    hidden, cache, _ = extend(
        TARGET, tokens, start, TARGET.init_cache(2, 9), count=count, layers=range(2)
    )
    hidden, cache, _ = extend(TARGET, hidden, start, cache, count=count, layers=range(2, 3))
    np.testing.assert_allclose(hidden, whole, **CLOSE)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **CLOSE), cache, full)


def test_capture_returns_the_output_of_each_named_layer():
    tokens, start, count = sample_tokens(1, 4), integers(0), integers(4)

    def run(**options):
        return extend(TARGET, tokens, start, TARGET.init_cache(1, 4), count=count, **options)

    hidden, _, (last, first) = run(capture=(2, 0))
    np.testing.assert_array_equal(last, hidden)
    np.testing.assert_allclose(first, run(layers=(0,))[0], **CLOSE)
    skipped, _, (features,) = run(layers=(0, 2), capture=(2,))
    np.testing.assert_array_equal(features, skipped)
    assert not np.allclose(skipped, hidden, atol=1e-3)
    with pytest.raises(ValueError, match="capture names layer 1, which is not run"):
        run(layers=(0, 2), capture=(1,))


@pytest.mark.parametrize("layers", [(1, 0), (0, 0), (0, 3), (-1, 0)])
def test_layers_ascend_within_the_model(layers):
    with pytest.raises(ValueError, match="layers must ascend within 0..2"):
        TARGET.extend(
            sample_tokens(1, 1),
            integers(0),
            TARGET.init_cache(1, 1),
            count=integers(1),
            layers=layers,
        )


def test_bfloat16_weights_give_bfloat16_states_and_float32_logits():
    weights = random_weights(CONFIG, jax.random.key(0), jnp.bfloat16)
    target = DecoderLM(weights, CONFIG)
    tokens, cache = sample_tokens(1, 4), target.init_cache(1, 4)
    hidden, cache, _ = extend(target, tokens, integers(0), cache, count=integers(4))
    assert {x.dtype for x in (hidden, *jax.tree.leaves(cache))} == {jnp.dtype(jnp.bfloat16)}
    logits = target.unembed(hidden)
    assert logits.dtype == jnp.float32
    exact, _ = logits_and_cache(TARGET, tokens, integers(0), TARGET.init_cache(1, 4), integers(4))
    np.testing.assert_allclose(logits, exact, atol=0.1)


def decode_in_a_loop(capacity):
    """Compile ten passes over three tokens in a while loop that carries the cache."""

    def decode(target, cache, tokens, start):
        def body(carry):
            step, cache, tokens, start = carry
            hidden, cache, _ = target.extend(tokens, start, cache, count=jnp.full_like(start, 3))
            tokens = jnp.argmax(target.unembed(hidden), -1).astype(jnp.int32)
            return step + 1, cache, tokens, start + 1

        return jax.lax.while_loop(lambda carry: carry[0] < 10, body, (0, cache, tokens, start))

    arguments = TARGET, TARGET.init_cache(2, capacity), sample_tokens(2, 3), integers(0, 4)
    return jax.jit(decode, donate_argnums=1).lower(*arguments).compile()


def cache_copies(program, capacity):
    """Copies of a whole [2, S, G * D] array, outside of fused computations."""
    copies, fused = 0, False
    for line in program.as_text().splitlines():
        if line.endswith("{"):
            fused = "fused" in line.split("(")[0]
        elif not fused:
            copies += bool(re.search(rf"= f32\[2,{capacity},16\]\S* copy\(", line))
    return copies


def test_a_loop_over_extend_copies_no_cache():
    assert cache_copies(decode_in_a_loop(600), 600) == 0


def test_copies_are_seen_by_the_count():
    kept = jax.jit(lambda x: (x.at[0].set(1.0), x)).lower(jnp.zeros((2, 600, 16))).compile()
    assert cache_copies(kept, 600) > 0


def cost(program):
    """Operations, each loop's body counted once, and bytes of temporary memory."""
    return program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes


def test_unused_slots_cost_nothing():
    assert cost(decode_in_a_loop(2 * BLOCK)) == cost(decode_in_a_loop(64 * BLOCK))


def test_new_weights_are_no_retrace():
    traces = []

    @jax.jit
    def run(target, tokens):
        traces.append(tokens.shape)
        return target.unembed(target.embed(tokens))

    for seed in (5, 6):
        run(DecoderLM(random_weights(CONFIG, jax.random.key(seed)), CONFIG), sample_tokens(1, 2))
    assert len(traces) == 1
