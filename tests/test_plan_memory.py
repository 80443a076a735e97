"""The plan's bytes are the compiler's."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from toy_plan import GLOBAL, toy_config, toy_machine, toy_setup

from specjax import compiled
from specjax.models import Experts
from specjax.plan.abstract import abstract_call
from specjax.plan.memory import largest_batch, memory_of
from specjax.plan.setup import Setup
from specjax.protocols import Cache
from specjax.sharding import make_mesh


def caches_of(program, request, chunk):
    """All caches after prefill."""
    state = compiled.begin(program, request, chunk=chunk)
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Cache))
    return [x for x in leaves if isinstance(x, Cache)]


def compiler_bytes(setup, mesh, **lower):
    """What the compiler says of one device: bytes of the weights, of the caches, and their number.

    Arguments are nothing but weights, results nothing but caches.
    """
    program, request = abstract_call(setup, mesh)
    request = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), request)
    caches = jax.jit(lambda program: caches_of(program, request, setup.chunk), keep_unused=True)
    found = caches.trace(program).lower(**lower).compile()
    memory, num = found.memory_analysis(), len(jax.tree.leaves(found.output_formats))
    return memory.argument_size_in_bytes, memory.output_size_in_bytes, num


def test_weights_and_caches_are_exactly_those_that_the_compiler_counts():
    # Copies of key heads, experts, a ring, rows and weights cut: all that makes shapes differ.
    setup = toy_setup(
        target=toy_config(
            num_heads=8,
            num_kv_heads=2,
            layers=(GLOBAL, dataclasses.replace(GLOBAL, sparse=True)),
            experts=Experts(num=4, num_chosen=2, size=16),
        ),
        drafter=toy_config(layers=(dataclasses.replace(GLOBAL, window=16),), num_kv_heads=1),
        topology=toy_machine(2, 4),
        mesh=(2, 4),
        batch=4,
        draft_length=3,
    )
    plan = memory_of(setup)
    weights, caches, num = compiler_bytes(setup, make_mesh(2, 4))
    assert weights == plan.weights + plan.draft_weights
    assert caches == plan.caches + 8 * num  # the CPU counts the address of each result


def test_what_grows_with_the_draft_length_is_told_apart():
    short, long = (
        memory_of(toy_setup(drafter=toy_config(), draft_length=k, batch=3)) for k in (2, 7)
    )
    slot = 4 * 2 * 32 * 3  # float32, two layers, keys and values of three rows
    assert long.scratch - short.scratch == 5 * slot
    assert long.draft_scratch - short.draft_scratch == 5 * slot
    assert long.draft_probs - short.draft_probs == 4 * 5 * 64 * 3
    assert dataclasses.replace(long, scratch=0, draft_scratch=0, draft_probs=0, working=0) == (
        dataclasses.replace(short, scratch=0, draft_scratch=0, draft_probs=0, working=0)
    )


@pytest.mark.parametrize("mesh", [(1, 2), (2, 1)])
def test_the_largest_batch_fits_and_one_more_row_does_not(mesh):
    setup = toy_setup(topology=toy_machine(2), mesh=mesh, batch=2)
    most, data = largest_batch(setup), mesh[0]
    assert most % data == 0
    assert memory_of(setup.but(batch=most)).total <= 1e6
    assert memory_of(setup.but(batch=most + data)).total > 1e6
    assert largest_batch(setup, beyond=1e6) == 0


TPU = """
import json, sys
from specjax.plan import topology
topology.prepare_environment("v5e:2x2")
from test_plan_memory import thin_setups, compiler_bytes
from specjax.plan.memory import memory_of
for setup in thin_setups():
    mesh = topology.mesh(setup.topology, setup.mesh_shape)
    plan = memory_of(setup)
    found = compiler_bytes(setup, mesh, lowering_platforms=("tpu",))
    print(json.dumps([plan.weights + plan.draft_weights, plan.caches, *found]))
"""


def thin_setups():
    """Real layers, few of them."""
    from specjax.plan.public import find_config

    def thin(name, num):
        config = find_config(name)
        return dataclasses.replace(config, layers=config.layers[:num])

    target, sparse = thin("llama-3.1-8b", 2), thin("qwen3-30b-a3b", 2)
    yield Setup(target, "v5e:2x2", thin("llama-3.2-1b", 2), batch=2, context=1000)
    yield Setup(sparse, "v5e:2x2", batch=4, mesh=(2, 2), context=1000)


@pytest.mark.slow
def test_the_tpus_compiler_counts_the_same():
    found = subprocess.run(
        [sys.executable, "-c", TPU],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert len(found.stdout.splitlines()) == 2
    for line in found.stdout.splitlines():
        weights, caches, held, kept, num = json.loads(line)
        assert held == weights
        assert 0 <= kept - caches <= 512 + 64 * num  # the addresses of the results
