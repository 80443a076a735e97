"""The loop under a user's own jit with shardings, shard_map and pmap: the tokens of one device."""

import dataclasses
from functools import cache, partial

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_cells import DENSE, FAST, Model, config, on_one_device

import specjax
from specjax import loop, rng

DRAFTERS = [
    "ngram",
    pytest.param("model", marks=pytest.mark.slow),
    pytest.param("tree", marks=pytest.mark.slow),
]


def model_of(name):
    return Model(config(8, DENSE), name)


@cache
def prepared(name):
    """A program and the arrays of a batch of eight rows, on one device."""
    model = model_of(name)
    call = model.prepare(model.decoder())
    return call.program, call.request


def laid_out(name, mesh):
    """The program with its models on a mesh."""
    return dataclasses.replace(
        model_of(name).decoder(mesh).program, processors=prepared(name)[0].processors
    )


def begin(program, request):
    return loop.start(
        program,
        request.tokens,
        request.length,
        sampling_values=request.sampling,
        key=rng.row_keys(request.seeds),
        limit=request.limit,
        chunk=8,
    )


def generate(program, request):
    """What a user's own function does: start, decode to the end, hand out what is wanted."""
    state = loop.generate(program, begin(program, request), chunk=8)
    return state.context, state.stats


fast_jit = partial(jax.jit, compiler_options=FAST)


def require_one_devices_answer(name, context, stats):
    expected, begins = on_one_device(model_of(name)), np.asarray(prepared(name)[1].length)
    rows = zip(np.asarray(context.tokens), begins, np.asarray(context.length), strict=True)
    assert [row[first:end].tolist() for row, first, end in rows] == expected.tokens
    assert np.array_equal(np.asarray(stats.outcomes).sum(0), expected.metrics.outcomes)


@pytest.mark.parametrize("name", DRAFTERS)
def test_jit_with_shardings(name):
    mesh = specjax.make_mesh(2, 4)
    rows = NamedSharding(mesh, P("data"))
    program, request = laid_out(name, mesh), jax.device_put(prepared(name)[1], rows)
    whole = NamedSharding(mesh, P())
    given = jax.tree.map(lambda x: x.sharding if x.committed else whole, program)
    run = fast_jit(generate, in_shardings=(given, rows), out_shardings=rows)
    context, stats = run(program, request)
    assert context.tokens.sharding.is_equivalent_to(rows, 2)
    require_one_devices_answer(name, context, stats)


@pytest.mark.parametrize("name", DRAFTERS)
def test_shard_map_over_rows(name):
    run = jax.shard_map(
        generate,
        mesh=specjax.make_mesh(8, 1),
        in_specs=(P(), P("data")),
        out_specs=P("data"),
        check_vma=False,
    )
    require_one_devices_answer(name, *fast_jit(run)(*prepared(name)))


def test_a_shard_map_that_checks_what_varies_is_refused():
    mesh = specjax.make_mesh(8, 1)
    run = jax.shard_map(generate, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    with pytest.raises(ValueError, match=r"tokens: vary over the mesh axes data.*check_vma=False"):
        jax.eval_shape(run, *prepared("ngram"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "model", "tree"])
def test_shard_map_over_rows_while_the_compiler_cuts_the_weights(name):
    mesh = specjax.make_mesh(2, 4)
    # The weights lie on the mesh; how the rest does is the compiler's business.
    program = jax.tree.map(
        lambda x: dataclasses.replace(x, layout=None) if hasattr(x, "layout") else x,
        dataclasses.replace(laid_out(name, mesh), layout=None),
        is_leaf=lambda x: isinstance(x, specjax.models.DecoderLM),
    )
    run = jax.shard_map(
        generate,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P("data"),
        axis_names={"data"},
        check_vma=False,
    )
    require_one_devices_answer(name, *fast_jit(run)(program, prepared(name)[1]))


@pytest.mark.parametrize("name", DRAFTERS)
def test_pmap_over_rows(name):
    program, request = prepared(name)
    one_each = jax.tree.map(lambda x: x.reshape(8, 1, *x.shape[1:]), request)
    output = jax.pmap(generate, in_axes=(None, 0))(program, one_each)
    context, stats = jax.tree.map(lambda x: x.reshape(8, *x.shape[2:]), output)
    require_one_devices_answer(name, context, stats)


@pytest.mark.parametrize("name", DRAFTERS)
def test_rounds_one_by_one_under_jit_with_shardings(name):
    mesh = specjax.make_mesh(2, 4)
    rows = NamedSharding(mesh, P("data"))
    program, request = laid_out(name, mesh), jax.device_put(prepared(name)[1], rows)

    @fast_jit
    def prefill(program, request):
        return loop.prefill(program, begin(program, request), chunk=8)

    @partial(fast_jit, donate_argnums=1)
    def step(program, state):
        return program.laid_out(loop.round(program, state)[0])

    state = prefill(program, request)
    while (state.finish == specjax.types.RUNNING).any():
        state = step(program, state)
    require_one_devices_answer(name, state.context, state.stats)
