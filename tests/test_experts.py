"""Sparse experts: what is chosen is computed in full, and nothing else is read."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.experts import expected_reads, mix, num_read, route

D, INNER, E = 16, 24, 5
MANY = 40  # positions: more than one block of 16

run_mix = jax.jit(mix, static_argnames="activation")
run_route = jax.jit(route, static_argnums=2, static_argnames="normalise")


def weights(num_experts=E, seed=0):
    """Router, gate, up and down, each with deviation fan_in ** -0.5."""
    rng = np.random.default_rng(seed)
    shapes = [
        (D, num_experts),
        *[(num_experts, INNER, D)] * 3,
    ]
    fan_in = D, D, D, INNER
    return [
        jnp.asarray(rng.normal(size=s) * n**-0.5, jnp.float32)
        for s, n in zip(shapes, fan_in, strict=True)
    ]


ROUTER, *KERNELS = weights()


def positions(num, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, D)), jnp.float32)


def choices(num, num_chosen, num_experts=E, seed=2):
    """Distinct experts for each position, and shares that sum to 1."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((num, num_experts)).argsort(-1)[:, :num_chosen]
    share = rng.dirichlet(np.ones(num_chosen), num)
    return jnp.asarray(chosen, jnp.int32), jnp.asarray(share, jnp.float32)


def everyone(num):
    return jnp.ones(num, bool)


def outputs_of_all(x, gate, up, down):
    """Every expert's output at every position [E, N, D], in float64."""
    x, gate, up, down = (np.asarray(a.astype(jnp.float32), np.float64) for a in (x, gate, up, down))
    gate, up = gate.swapaxes(-1, -2), up.swapaxes(-1, -2)
    gated = x @ gate
    return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


def dense(x, chosen, share, gate, up, down):
    """All experts at all positions, then the shares, in float64."""
    outputs, index = outputs_of_all(x, gate, up, down), np.arange(x.shape[0])[:, None]
    return (outputs[np.asarray(chosen), index] * np.asarray(share)[..., None]).sum(1)


def assert_close(found, wanted, tolerance=1e-5):
    """Close to the scale of what is wanted."""
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("num_chosen", range(1, E + 1))
def test_the_largest_of_the_softmax_are_chosen(num_chosen, normalise):
    x = positions(MANY)
    logits = np.asarray(x, np.float64) @ np.asarray(ROUTER, np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = (-probs).argsort(-1)[:, :num_chosen]
    shares = np.take_along_axis(probs, wanted, -1)
    if normalise:
        shares /= shares.sum(-1, keepdims=True)
    chosen, share = run_route(x, ROUTER, num_chosen, normalise=normalise, valid=everyone(MANY))
    np.testing.assert_array_equal(chosen, wanted)
    assert_close(share, shares)


def test_of_equal_experts_the_first_are_chosen():
    chosen, share = route(
        positions(3), jnp.zeros((D, E)), 2, normalise=False, valid=jnp.array([True, True, False])
    )
    assert chosen.tolist() == [[0, 1], [0, 1], [-1, -1]]
    assert_close(share, [[0.2, 0.2], [0.2, 0.2], [0, 0]])


@pytest.mark.parametrize("num_chosen", range(1, E + 1))
def test_mixing_the_chosen_equals_a_dense_sum_over_all(num_chosen):
    x, picked = positions(MANY), choices(MANY, num_chosen)
    assert_close(run_mix(x, *picked, everyone(MANY), *KERNELS), dense(x, *picked, *KERNELS))


@pytest.mark.parametrize("experts", [(3, 1), (4, 0)])
def test_no_position_is_dropped_when_all_choose_the_same_experts(experts):
    x, (_, share) = positions(MANY), choices(MANY, 2)
    chosen = jnp.tile(jnp.array(experts, jnp.int32), (MANY, 1))
    found = run_mix(x, chosen, share, everyone(MANY), *KERNELS)
    assert_close(found, dense(x, chosen, share, *KERNELS))


def test_invalid_positions_give_zeros_and_change_nothing():
    x, (chosen, share) = positions(MANY), choices(MANY, 2)
    valid = jnp.arange(MANY) % 3 != 0
    whole = run_mix(x, chosen, share, everyone(MANY), *KERNELS)
    poisoned = jnp.where(valid[:, None], x, jnp.nan)
    found = run_mix(poisoned, chosen, share, valid, *KERNELS)
    np.testing.assert_array_equal(found, jnp.where(valid[:, None], whole, 0))
    chosen, share = run_route(poisoned, ROUTER, 2, normalise=True, valid=valid)
    assert (chosen[~valid] == -1).all()
    assert (share[~valid] == 0).all()
    np.testing.assert_array_equal(run_mix(poisoned, chosen, share, valid, *KERNELS)[~valid], 0)


@pytest.mark.parametrize("num", [9, MANY])
def test_a_position_does_not_depend_on_the_others(num):
    """Bitwise: the others hold and choose something else, so it sits elsewhere in its blocks."""
    x, (chosen, share) = positions(num), choices(num, 2)
    alone = run_mix(x, chosen, share, everyone(num), *KERNELS)
    for seed in range(3, 8):
        others, (other_chosen, other_share) = positions(num, seed), choices(num, 2, seed=seed)
        kept = jnp.arange(num) == seed
        found = run_mix(
            jnp.where(kept[:, None], x, others * 1e3),
            jnp.where(kept[:, None], chosen, other_chosen),
            jnp.where(kept[:, None], share, other_share),
            kept | (jnp.arange(num) % 2 == 0),
            *KERNELS,
        )
        np.testing.assert_array_equal(found[seed], alone[seed])


def test_a_row_alone_equals_the_row_in_a_batch():
    """Blocks are of another size: equal up to the rounding of a product over more rows."""
    x, (chosen, share) = positions(MANY), choices(MANY, 2)
    batch = run_mix(x, chosen, share, everyone(MANY), *KERNELS)
    row = slice(16, 25)
    alone = run_mix(x[row], chosen[row], share[row], everyone(9), *KERNELS)
    assert_close(batch[row], alone, 1e-6)


def test_experts_that_nobody_chose_are_not_read():
    """An expert of NaN would show, were it multiplied by anything, zero included."""
    x, (chosen, share) = positions(MANY), choices(MANY, 2)
    chosen, valid = chosen % 2 * 3, everyone(MANY).at[5].set(False)  # experts 0 and 3
    kernels = [jnp.full_like(w, jnp.nan).at[0].set(w[0]).at[3].set(w[3]) for w in KERNELS]
    chosen = chosen.at[5].set(2)
    found = run_mix(x, chosen, share, valid, *kernels)
    np.testing.assert_array_equal(found, run_mix(x, chosen, share, valid, *KERNELS))


@pytest.fixture(scope="module")
def readings():
    """Count the blocks that a call computes: each runs the activation once."""
    count = []

    def activation(x):
        jax.debug.callback(lambda: count.append(1))
        return jax.nn.silu(x)

    def run(chosen, valid):
        count.clear()
        num, num_chosen = chosen.shape
        share = jnp.ones((num, num_chosen), jnp.float32)
        run_mix(positions(num), chosen, share, valid, *KERNELS, activation=activation)
        jax.effects_barrier()
        return len(count)

    return run


def test_up_to_sixteen_positions_read_each_chosen_expert_once(readings):
    for seed in range(3):
        for part in (everyone(9), jnp.arange(9) < 2, jnp.zeros(9, bool)):
            chosen, _ = choices(9, 2, seed=seed)
            distinct = num_read(chosen[None], part[None], E)
            assert readings(chosen, part) == int(distinct[0])


def test_more_positions_read_an_expert_once_a_block(readings):
    chosen = jnp.tile(jnp.array([[3, 1]], jnp.int32), (MANY, 1))
    assert readings(chosen, everyone(MANY)) == 2 * 3  # 40 positions of each, 16 at a time
    assert readings(chosen, jnp.arange(MANY) < 16) == 2


def test_the_program_multiplies_by_one_expert_at_a_time():
    num, num_experts = 7, 37
    kernels = weights(num_experts)[1:]
    picked = choices(num, 2, num_experts)
    lowered = jax.jit(mix).lower(positions(num), *picked, everyone(num), *kernels)
    products = re.findall(r"\[([\d,]*)\]\S* dot\(", lowered.as_text("hlo"))
    assert sorted(products) == [f"{num},{D}", f"{num},{INNER}", f"{num},{INNER}"]
    program = lowered.compile()
    one = 2 * num * D * INNER * 3
    assert program.cost_analysis()["flops"] < 2 * one  # a loop's body counts once
    assert program.memory_analysis().temp_size_in_bytes < kernels[0].nbytes / 2  # no copy of all


def test_bfloat16_weights_have_float32_sums():
    x, picked = positions(MANY).astype(jnp.bfloat16), choices(MANY, 2)
    kernels = [w.astype(jnp.bfloat16) for w in KERNELS]
    found = run_mix(x, *picked, everyone(MANY), *kernels)
    assert found.dtype == jnp.bfloat16
    assert_close(found.astype(jnp.float32), dense(x, *picked, *kernels), 2**-7)
    text = str(jax.make_jaxpr(mix)(x, *picked, everyone(MANY), *kernels))
    assert text.count("dot_general") == text.count("preferred_element_type=float32") == 3
    _, share = route(x, ROUTER.astype(jnp.bfloat16), 2, normalise=True, valid=everyone(MANY))
    assert share.dtype == jnp.float32
    assert_close(share.sum(-1), np.ones(MANY), 1e-6)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        x, router, *kernels = (a.astype(jnp.float64) for a in (positions(9), ROUTER, *KERNELS))
        chosen, share = run_route(x, router, 2, normalise=True, valid=everyone(9))
        found = run_mix(x, chosen, share, everyone(9), *kernels)
        assert (chosen.dtype, share.dtype, found.dtype) == (jnp.int32, jnp.float64, jnp.float64)


def test_the_activation_is_the_callers():
    x, picked = positions(9), choices(9, 2)
    linear = run_mix(x, *picked, everyone(9), *KERNELS, activation=lambda x: x)
    gate, up, down = (np.asarray(w, np.float64) for w in KERNELS)
    gate, up = gate.swapaxes(-1, -2), up.swapaxes(-1, -2)
    outputs = ((x @ gate) * (x @ up)) @ down
    taken = outputs[np.asarray(picked[0]), np.arange(9)[:, None]]
    assert_close(linear, (taken * np.asarray(picked[1])[..., None]).sum(1))


def test_distinct_experts_are_counted_by_row():
    chosen = jnp.array([[[0, 1], [1, 2], [0, 2]], [[4, 3], [3, 4], [0, 1]]], jnp.int32)
    valid = jnp.array([[True, True, True], [True, True, False]])
    assert num_read(chosen, valid, E).tolist() == [3, 2]
    nowhere = jnp.full_like(chosen, -1)
    assert num_read(nowhere, valid, E).tolist() == [0, 0]


def test_expected_reads_are_those_of_uniform_choices():
    chosen, _ = choices(6 * 4000, 3, num_experts=16)
    drawn = num_read(chosen.reshape(4000, 6, 3), jnp.ones((4000, 6), bool), 16)
    assert float(drawn.mean()) == pytest.approx(expected_reads(16, 3, 6), abs=0.1)


@pytest.mark.parametrize("num_chosen", [0, E + 1])
def test_a_number_of_experts_that_is_not_there_is_refused(num_chosen):
    with pytest.raises(ValueError, match="num_chosen"):
        route(positions(3), ROUTER, num_chosen, normalise=True, valid=everyone(3))
    with pytest.raises(ValueError, match="num_chosen"):
        expected_reads(E, num_chosen, 1)


def test_a_negative_number_of_positions_is_refused():
    with pytest.raises(ValueError, match="positions"):
        expected_reads(8, 2, -1)


def mixtral(**sizes):
    from transformers.models.mixtral import modeling_mixtral as source

    config = source.MixtralConfig(intermediate_size=INNER, num_local_experts=E, **sizes)
    return source.MixtralSparseMoeBlock(config)


def qwen3(normalise, **sizes):
    from transformers.models.qwen3_moe import modeling_qwen3_moe as source

    config = source.Qwen3MoeConfig(
        moe_intermediate_size=INNER, num_experts=E, norm_topk_prob=normalise, **sizes
    )
    return source.Qwen3MoeSparseMoeBlock(config)


@pytest.mark.parametrize(
    ("make", "normalise"),
    [(mixtral, True), (partial(qwen3, True), True), (partial(qwen3, False), False)],
    ids=["mixtral", "qwen3-normalised", "qwen3"],
)
@pytest.mark.parametrize("num_chosen", [1, 2])
def test_a_layer_equals_that_of_transformers(make, normalise, num_chosen):
    torch = pytest.importorskip("torch")
    peer = make(hidden_size=D, num_experts_per_tok=num_chosen).eval()
    tensors = [torch.tensor(np.asarray(w)) for w in (ROUTER, *KERNELS)]
    router, gate, up, down = tensors
    router, down = router.T, down.transpose(-1, -2)
    x = positions(MANY)
    with torch.no_grad():
        peer.gate.weight.copy_(router)
        peer.experts.gate_up_proj.copy_(torch.cat([gate, up], 1))
        peer.experts.down_proj.copy_(down)
        wanted = peer(torch.tensor(np.asarray(x))[None])[0].numpy()
    picked = run_route(x, ROUTER, num_chosen, normalise=normalise, valid=everyone(MANY))
    assert_close(run_mix(x, *picked, everyone(MANY), *KERNELS), wanted)
