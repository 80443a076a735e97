"""What the compiler is asked for: few traces, one dispatch, nothing copied, nothing kept."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import compiled
from specjax.api import Decoder
from specjax.bench.compiling import cache_copies
from specjax.drafters import DraftModel, DraftTree, NGram
from specjax.testing import tiny_lm

TARGET = tiny_lm(jax.random.key(0), max_length=4096)
DECODER = Decoder(TARGET, NGram(3), prefill_chunk=8)


def traces():
    return compiled.generate._cache_size()


def request(decoder=DECODER, prompt=(1, 2, 3), **settings):
    return decoder.prepare([list(prompt)], **{"max_new_tokens": 8, **settings}).request


def test_forty_prompt_lengths_make_one_trace_a_bucket():
    before = traces()
    for length in range(1, 201, 5):
        DECODER.generate([1 + i % 50 for i in range(length)], max_new_tokens=40)
    buckets = {request(prompt=[1] * n, max_new_tokens=40).tokens.shape for n in range(1, 201, 5)}
    assert traces() - before <= len(buckets) == 3


def test_values_make_no_trace():
    settings = {"max_new_tokens": 8, "temperature": 0.5, "seed": 0, "stop_token_ids": [3]}
    DECODER.generate([1, 2, 3], **settings)
    before = traces()
    for change in (
        {"seed": 2**31},
        {"temperature": 1.5},
        {"temperature": 0},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.1},
        {"stop_token_ids": [4, 5]},
        {"max_new_tokens": 16},
        {"max_new_tokens": 0},
    ):
        DECODER.generate([1, 2, 3], **{**settings, **change})
    other = Decoder(tiny_lm(jax.random.key(9), max_length=4096), NGram(3), prefill_chunk=8)
    other.generate([1, 2, 3], **settings)
    assert traces() == before


def lowered(drafter, widths=None):
    decoder = Decoder(TARGET, drafter, prefill_chunk=8, widths=widths)
    return compiled.generate.lower(decoder.program, request(decoder), chunk=8)


def primitives(jaxpr):
    """Every primitive of a jaxpr and, below each, those of its inner jaxprs."""
    for equation in jaxpr.eqns:
        inner = [x for value in equation.params.values() for x in jaxprs(value)]
        yield equation.primitive.name, [name for j in inner for name in flat(j)]
        for j in inner:
            yield from primitives(j)


def flat(jaxpr):
    return [name for name, _ in primitives(jaxpr)]


def jaxprs(value):
    if hasattr(value, "jaxpr"):
        yield value.jaxpr
    elif hasattr(value, "eqns"):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from jaxprs(item)


@pytest.mark.parametrize("drafter", [NGram(3), DraftModel(TARGET, 3)], ids=["ngram", "model"])
def test_the_whole_round_is_inside_the_loop_and_calls_nobody(drafter):
    decoder = Decoder(TARGET, drafter, prefill_chunk=8)
    traced = compiled.generate.trace(decoder.program, request(decoder), chunk=8).jaxpr.jaxpr
    every = flat(traced)
    assert not [name for name in every if "callback" in name or "infeed" in name]
    loops = [inner for name, inner in primitives(traced) if name == "while"]
    # One loop holds the draft, the target's pass, the verdict and the cache's update.
    assert any({"dot_general", "scatter", "while", "argmax"} <= set(inner) for inner in loops)


def test_a_call_transfers_nothing_between_start_and_end():
    # On CPU the guard cannot see the device's side; that nobody is called is shown above.
    prepared = request()
    compiled.generate(DECODER.program, prepared, chunk=8)
    with jax.transfer_guard("disallow"):
        output, _ = compiled.generate(DECODER.program, prepared, chunk=8)
    assert int(output.length[0]) == 11


CASES = {
    "ngram": (NGram(3), None),
    "model": (DraftModel(TARGET, 3), None),
    "tree of four widths": (DraftTree(TARGET, (2, 1)), (0, 1, 2)),
}


@pytest.mark.parametrize(
    "name", ["ngram", "model", pytest.param("tree of four widths", marks=pytest.mark.slow)]
)
def test_the_compiled_program_copies_no_cache(name):
    drafter, widths = CASES[name]
    program = lowered(drafter, widths).compile()
    shape = f"1,{129 + drafter.num_nodes},16"
    assert cache_copies(f"x = f32[{shape}]{{2,1,0}} copy(y)", shape) != []
    assert f"f32[{shape}]" in program.as_text()
    assert cache_copies(program.as_text(), shape) == []


def test_a_streamed_round_reuses_the_state_it_is_given():
    state = compiled.begin(DECODER.program, request(), chunk=8)
    program = compiled.advance.lower(DECODER.program, state, jnp.int32(1)).compile()
    cache = sum(x.nbytes for x in jax.tree.leaves(state.cache))
    assert program.memory_analysis().alias_size_in_bytes >= cache
    assert cache_copies(program.as_text(), "1,132,16") == []


def test_fifty_calls_leave_the_live_bytes_where_they_were():
    def live():
        gc.collect()
        return sum(x.nbytes for x in jax.live_arrays())

    DECODER.generate([1, 2, 3], max_new_tokens=8)
    list(DECODER.stream([1, 2, 3], max_new_tokens=8))
    before = live()
    for seed in range(50):
        DECODER.generate([1, 2, 3], max_new_tokens=8, seed=seed)
    list(DECODER.stream([1, 2, 3], max_new_tokens=8))
    assert live() == before


def test_typed_values_are_not_weak():
    weak = [x for x in jax.tree.leaves(request()) if getattr(x, "weak_type", False)]
    assert weak == []
    assert np.asarray(request().seeds).dtype == np.uint32
