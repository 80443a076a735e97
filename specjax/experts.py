"""Sparse experts: a router picks a few for each position, and only those are read and computed.

A loop over what was picked, not ``jax.lax.ragged_dot``: on a CPU that multiplies by all experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Int8

from specjax import int8
from specjax.nn import wide
from specjax.sharding import Layout

Stack = Float[Array, "E _ _"] | tuple[Int8[Array, "E _ _"], Float[Array, "E _"]]
"""One kernel of every expert, or weights in eight bits with their scales."""

BLOCK = 16
"""Positions that one reading of an expert serves, at least."""


def route(
    x: Float[Array, "N D"],
    router: Float[Array, "D E"],
    num_chosen: int,
    *,
    normalise: bool,
    valid: Bool[Array, " N"],
) -> tuple[Int[Array, "N C"], Float[Array, "N C"]]:
    """Choose each position's experts and their shares of its output, the largest share first.

    A softmax over all experts, in float32 or wider, of which the ``num_chosen`` largest stay; of
    equals the lower index. ``normalise`` makes the shares of the chosen sum to 1, which is the
    softmax over their logits alone (Jiang et al. 2024, section 2.1). A position that is not
    ``valid`` chooses expert -1 with share 0, whatever it holds.

    Raises:
        ValueError: ``num_chosen`` is not within 1..E.

    >>> router = jnp.log(jnp.array([[1.0, 2.0, 1.0], [1.0, 1.0, 6.0]]))
    >>> valid = jnp.array([True, False])
    >>> chosen, share = route(jnp.eye(2), router, 2, normalise=False, valid=valid)
    >>> chosen.tolist(), share.tolist()
    ([[1, 0], [-1, -1]], [[0.5, 0.25], [0.0, 0.0]])
    """
    _check(router.shape[1], num_chosen)
    logits = jnp.matmul(x, router, preferred_element_type=wide(x.dtype))
    share, chosen = jax.lax.top_k(jax.nn.softmax(logits), num_chosen)
    if normalise:
        share = share / share.sum(-1, keepdims=True)
    keep = valid[:, None]
    return jnp.where(keep, chosen.astype(jnp.int32), -1), jnp.where(keep, share, 0.0)


def mix(
    x: Float[Array, "N D"],
    chosen: Int[Array, "N C"],
    share: Float[Array, "N C"],
    valid: Bool[Array, " N"],
    gate: Stack,
    up: Stack,
    down: Stack,
    *,
    activation: Callable[[Array], Array] = jax.nn.silu,
) -> Float[Array, "N D"]:
    """Add up the outputs of each position's experts, (activation(x gate) * (x up)) down, by share.

    An expert is read only if a valid position has chosen it: once for up to 16 positions in all,
    else once for each block of its positions. Experts have no capacity: no position is dropped.
    Sums are in float32 or wider. A position that is not ``valid`` gives zeros, and an expert that
    is not in the stacks nothing. For a given N, what a position gives does not depend on what the
    others hold or choose.

    Kernels are [E, inner, D], all three. In eight bits they are [E, out, in], each stack with its
    scales f[E, out].
    """
    num, num_chosen = chosen.shape
    num_experts, dtype = jax.tree.leaves(gate)[0].shape[0], wide(x.dtype)
    order, expert, ends = _by_expert(chosen, valid, num_experts)
    block = block_size(num, num_chosen, num_experts)
    position = jnp.pad(order // num_chosen, (0, block))

    def compute(carry):
        first, outputs = carry
        here = expert[first]
        rows = x[jax.lax.dynamic_slice_in_dim(position, first, block)]
        gated = activation(_product(rows, gate, here, dtype, "nd,id->ni"))
        inner = (gated * _product(rows, up, here, dtype, "nd,id->ni")).astype(x.dtype)
        part = _product(inner, down, here, dtype, "ni,id->nd")
        # A block may reach beyond its expert's group: the next block writes over that.
        outputs = jax.lax.dynamic_update_slice_in_dim(outputs, part, first, axis=0)
        return jnp.minimum(first + block, ends[here]), outputs

    # Each assignment has a slot of its own: no sum depends on the order of the blocks.
    outputs = jnp.zeros((num * num_chosen + block, x.shape[1]), dtype)
    start = jnp.zeros((), jnp.int32), outputs
    _, outputs = jax.lax.while_loop(lambda carry: carry[0] < ends[-1], compute, start)
    parts = outputs[jnp.argsort(order)].reshape(num, num_chosen, -1)
    parts = jnp.where(_here(chosen, valid, num_experts)[..., None], parts, 0.0)
    return (parts * share.astype(dtype)[..., None]).sum(1).astype(x.dtype)


def mix_on(
    layout: Layout,
    batch: int,
    x: Float[Array, "N D"],
    chosen: Int[Array, "N C"],
    share: Float[Array, "N C"],
    valid: Bool[Array, " N"],
    gate: Stack,
    up: Stack,
    down: Stack,
    *,
    activation: Callable[[Array], Array] = jax.nn.silu,
) -> Float[Array, "N D"]:
    """``mix`` on a mesh: each device computes its rows, and of the experts what it holds.

    That is a part of every expert, or whole experts, as the layout's rules say; one all-reduce
    adds them up. ``batch`` is the number of rows that the N positions belong to.
    """
    num_experts, inner = _sizes(down)
    units = {"batch": batch, "experts": num_experts, "mlp": inner}

    def spec(*axes: str | None) -> PartitionSpec:
        return layout.sharding(axes, units).spec

    rows, (gates, downs) = spec("batch", None), _stack_specs(spec, isinstance(down, tuple))
    by_experts, within = spec("experts", "mlp")
    axis = by_experts or within

    def part(x, chosen, *rest):
        if by_experts is not None:
            held = num_experts // layout.mesh.shape[by_experts]
            chosen = chosen - jax.lax.axis_index(by_experts) * held
        mixed = mix(x, chosen, *rest, activation=activation)
        return mixed if axis is None else jax.lax.psum(mixed, axis)

    return jax.shard_map(
        part,
        mesh=layout.mesh,
        in_specs=(rows, rows, rows, spec("batch"), gates, gates, downs),
        out_specs=rows,
        check_vma=False,
    )(x, chosen, share, valid, gate, up, down)


def _sizes(down: Stack) -> tuple[int, int]:
    """How many experts a stack holds, and their inner size."""
    if isinstance(down, tuple):
        return down[0].shape[0], down[0].shape[2]
    return down.shape[0], down.shape[1]


def _stack_specs(spec: Callable[..., PartitionSpec], eight_bits: bool) -> tuple[Any, Any]:
    """How the stacks of gate and up, and that of down, are cut."""
    inner_first = spec("experts", "mlp", None)
    if eight_bits:  # [out, in], and a scale for each output
        inner_last = spec("experts", None, "mlp")
        return (inner_first, spec("experts", "mlp")), (inner_last, spec("experts", None))
    return inner_first, inner_first


def _here(
    chosen: Int[Array, "N C"], valid: Bool[Array, " N"], num_experts: int
) -> Bool[Array, "N C"]:
    """Which choices are of experts in the stacks."""
    return valid[:, None] & (chosen >= 0) & (chosen < num_experts)


def _by_expert(
    chosen: Int[Array, "N C"], valid: Bool[Array, " N"], num_experts: int
) -> tuple[Int[Array, " A"], Int[Array, " A"], Int[Array, " E"]]:
    """Sort the N * C assignments by expert, those that are not valid or not held last.

    Gives their order, the expert of each in that order, and where each expert's group ends.
    """
    held = _here(chosen, valid, num_experts)
    expert = jnp.where(held, chosen, num_experts).reshape(-1)
    order = jnp.argsort(expert, stable=True)
    expert = expert[order]
    each = jnp.arange(num_experts, dtype=expert.dtype)
    ends = (expert <= each[:, None]).sum(-1, dtype=jnp.int32)
    return order.astype(jnp.int32), expert, ends


def block_size(num: int, num_chosen: int, num_experts: int) -> int:
    """Positions to compute at a time: all up to 16, else about as many as an expert has.

    >>> [block_size(n, 2, 8) for n in (1, 5, 64, 256, 1000)]
    [1, 5, 16, 64, 256]
    """
    mean = -(-num * num_chosen // num_experts)
    return min(num, max(BLOCK, 1 << (mean - 1).bit_length()))


def _product(rows: Float[Array, "N I"], stack: Stack, index, dtype, how: str):
    """Multiply by one kernel of the stack, oriented as ``how`` says."""
    one = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), stack)
    if isinstance(one, tuple):
        return int8.matmul(rows, *one, dtype=dtype)
    return jnp.einsum(how, rows, one, preferred_element_type=dtype)


def num_read(
    chosen: Int[Array, "B T C"], valid: Bool[Array, "B T"], num_experts: int
) -> Int[Array, " B"]:
    """Count the distinct experts that each row's pass reads.

    >>> chosen = jnp.array([[[0, 3], [3, 5], [1, 2]]])
    >>> num_read(chosen, jnp.array([[True, True, False]]), 8).tolist()
    [3]
    """
    experts = jnp.arange(num_experts, dtype=chosen.dtype)
    read = (chosen[..., None] == experts) & valid[..., None, None]
    return read.any((1, 2)).sum(-1, dtype=jnp.int32)


def expected_reads(num_experts: int, num_chosen: int, positions: int) -> float:
    """Distinct experts that a pass reads on average, were each choice uniform and independent.

    E (1 - (1 - k / E) ** t) for k of E experts chosen at each of t positions. A router that sends
    neighbours to the same experts reads fewer.

    Raises:
        ValueError: ``num_chosen`` is not within 1..E, or ``positions`` is negative.

    >>> round(expected_reads(num_experts=128, num_chosen=8, positions=6), 1)
    41.1
    """
    _check(num_experts, num_chosen)
    if positions < 0:
        raise ValueError(f"positions: {positions} is negative; a pass has 0 or more")
    return num_experts * (1 - (1 - num_chosen / num_experts) ** positions)


def _check(num_experts: int, num_chosen: int) -> None:
    if not 1 <= num_chosen <= num_experts:
        raise ValueError(
            f"num_chosen: {num_chosen} of {num_experts} experts; choose from 1 to {num_experts}"
        )
