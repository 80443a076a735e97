"""Reading a compiled program: each count finds what is there and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import compiled
from specjax.api import Decoder
from specjax.drafters import NGram
from specjax.plan import hlo
from specjax.sharding import make_mesh
from specjax.testing import tiny_lm

CACHE = hlo.Shape("bf16", (4, 130, 256))

TEXT = """HloModule jit_generate, is_scheduled=true

%fused_write (a: bf16[4,130,256], i: s32[4], u: bf16[4,256]) -> bf16[4,130,256] {
  %a = bf16[4,130,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i = s32[4]{0} parameter(1)
  %u = bf16[4,256]{1,0} parameter(2)
  %inner.1 = bf16[4,130,256]{2,1,0} copy(%a)
  ROOT %s = bf16[4,130,256]{2,1,0} scatter(%inner.1, %i, %u), to_apply=%add
}

%fused_outer (a: bf16[4,130,256], i: s32[4], u: bf16[4,256]) -> bf16[4,130,256] {
  %a = bf16[4,130,256]{2,1,0} parameter(0)
  %i = s32[4]{0} parameter(1)
  %u = bf16[4,256]{1,0} parameter(2)
  ROOT %w = bf16[4,130,256]{2,1,0} fusion(%a, %i, %u), kind=kCustom, calls=%fused_write
}

%fused_scale (a: bf16[4,130,256]) -> bf16[4,130,256] {
  %a = bf16[4,130,256]{2,1,0} parameter(0)
  ROOT %m = bf16[4,130,256]{2,1,0} multiply(%a, %a)
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%attention_body (p: (s32[], bf16[4,130,256])) -> (s32[], bf16[4,130,256]) {
  %p = (s32[], bf16[4,130,256]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %keys = bf16[4,130,256]{2,1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %d = bf16[4,128,256]{2,1,0} dynamic-slice(%keys, %i, %i, %i), dynamic_slice_sizes={4,128,256}, \
metadata={op_name="jit(generate)/while/body/verify/while/body/dynamic_slice" stack_frame_id=3}
  ROOT %t = (s32[], bf16[4,130,256]{2,1,0}) tuple(%i, %keys)
}

%attention_condition (p: (s32[], bf16[4,130,256])) -> pred[] {
  %p = (s32[], bf16[4,130,256]{2,1,0}) parameter(0)
  ROOT %go = pred[] constant(true)
}

%round (p: (s32[], bf16[4,130,256], f32[8,64])) -> (s32[], bf16[4,130,256], f32[8,64]) {
  %p = (s32[], bf16[4,130,256]{2,1,0}, f32[8,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %keys = bf16[4,130,256]{2,1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %weight = f32[8,64]{1,0} get-tuple-element(%p), index=2
  %draft = s32[] add(%i, %i), metadata={op_name="jit(generate)/while/body/draft/add"}
  %here = bf16[4,130,256]{2,1,0:T(8,128)(2,1)S(1)} copy(%keys)
  %written = bf16[4,130,256]{2,1,0} fusion(%here, %i, %i), kind=kCustom, calls=%fused_outer
  %turned = bf16[4,130,256]{2,0,1:T(8,128)(2,1)S(1)} copy(%here)
  %scaled = bf16[4,130,256]{2,1,0} fusion(%keys), kind=kLoop, calls=%fused_scale
  %while.1 = (s32[], bf16[4,130,256]{2,1,0}) while(%p), condition=%attention_condition, \
body=%attention_body, metadata={op_name="jit(generate)/while/body/verify/while"}
  %r.1 = bf16[4,6,64]{2,1,0} all-reduce(%i), to_apply=%add, \
metadata={op_name="jit(generate)/while/body/verify/dot_general"}
  %r.2 = bf16[4,6,64]{2,1,0} all-reduce-start(%i), to_apply=%add, \
metadata={op_name="jit(generate)/while/body/verify/dot_general"}
  %r.3 = bf16[4,6,64]{2,1,0} all-reduce-done(%r.2), \
metadata={op_name="jit(generate)/while/body/verify/dot_general"}
  %g.1 = f32[8,256]{1,0} all-gather(%weight), dimensions={1}, \
metadata={op_name="jit(generate)/while/body/accept/gather"}
  %g.2 = s32[4]{0} all-gather(%i), dimensions={0}, \
metadata={op_name="jit(generate)/while/body/commit/gather"}
  %seen = s32[] custom-call(%i), custom_call_target="xla_ffi_python_cpu_callback", \
metadata={op_name="jit(generate)/while/body/commit/callback"}
  ROOT %t = (s32[], bf16[4,130,256]{2,1,0}, f32[8,64]{1,0}) tuple(%i, %keys, %weight)
}

%more (p: (s32[], bf16[4,130,256], f32[8,64])) -> pred[] {
  %p = (s32[], bf16[4,130,256]{2,1,0}, f32[8,64]{1,0}) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (w: f32[8,64]) -> s32[] {
  %w = f32[8,64]{1,0} parameter(0)
  %zero = bf16[] constant(0)
  %zeros = bf16[4,130,256]{2,1,0} broadcast(%zero), dimensions={}
  %keys = bf16[4,130,256]{2,1,0} copy(%zeros)
  %o = token[] outfeed(%w)
  %p = (s32[], bf16[4,130,256]{2,1,0}, f32[8,64]{1,0}) tuple(%zero, %keys, %w)
  %while.2 = (s32[], bf16[4,130,256]{2,1,0}, f32[8,64]{1,0}) while(%p), condition=%more, body=%round
  ROOT %end = s32[] get-tuple-element(%while.2), index=0
}
"""
MODULE = hlo.parse(TEXT)


def names(found):
    return [one.name for one in found]


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("HloModule nothing")


def test_the_round_is_the_outer_loop_with_all_that_it_calls():
    assert MODULE.rounds >= {"round", "more", "attention_body", "fused_write", "add"}
    assert "main" not in MODULE.looped
    assert MODULE.fused == {"fused_write", "fused_outer", "fused_scale", "add"}


def test_exchanges_count_once_each_and_by_the_part_of_the_round():
    assert hlo.collectives(MODULE, "verify") == {"all-reduce": 2}
    assert hlo.collectives(MODULE, "accept") == {"all-gather": 1}
    assert hlo.collectives(MODULE, "draft") == {}


def test_a_gather_of_a_weight_is_found_and_one_of_a_number_is_not():
    assert names(hlo.gathers(MODULE, [hlo.Shape("f32", (8, 64)), CACHE])) == ["g.1"]


def test_a_copy_of_a_cache_is_found_where_it_is_stored_or_turned():
    """Not: what is fused, written in place, brought to fast memory, or zeros at the start."""
    assert sorted(names(hlo.copies(MODULE, [CACHE]))) == ["scaled", "turned"]


def test_only_what_waits_for_the_host_inside_a_loop_counts():
    assert names(hlo.host_calls(MODULE)) == ["seen"]


def test_what_the_attention_loop_reads_of_a_cache_is_counted_in_bytes():
    assert hlo.block_bytes(MODULE, [CACHE], "verify") == 4 * 128 * 256 * 2
    assert hlo.block_bytes(MODULE, [CACHE], "draft") == 0


def test_a_real_program_reads_as_what_it_is():
    target = tiny_lm(jax.random.key(0))
    decoder = Decoder(target, NGram(3), prefill_chunk=8)
    call = decoder.prepare([[1, 2, 3]], max_new_tokens=8)
    state = jax.eval_shape(lambda p, r: compiled.begin(p, r, chunk=8), call.program, call.request)
    program = compiled.advance.lower(call.program, state, jnp.int32(1)).compile()
    module = hlo.parse(program.as_text())
    cache = state.cache.layers[0][0]
    shape = hlo.Shape("f32", cache.shape)
    scopes = ("draft", "verify", "accept", "commit")
    in_round = list(module.everything(module.rounds))
    assert all(any(one.within(scope) for one in in_round) for scope in scopes)
    assert hlo.host_calls(module) == hlo.copies(module, [shape]) == []
    whole_slots = np.prod(cache.shape) // 132
    blocks = hlo.block_bytes(module, [shape], "verify")
    assert blocks == target.num_layers * 2 * 128 * whole_slots * 4


def test_a_real_copy_callback_and_gather_are_found():
    shape, mesh = (4, 130, 64), make_mesh(1, 4, jax.devices()[:4])
    cut, whole = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in ((None, None, "model"), ())
    )

    def loop(x, w):
        def body(_, x):
            jax.debug.callback(lambda v: None, x[0, 0, 0])
            w_whole = jax.lax.with_sharding_constraint(w * x[0, 0, 0], whole)
            return jnp.flip(x, 1) * w_whole.sum()

        return jax.lax.fori_loop(0, 3, body, x)

    x, w = (jax.ShapeDtypeStruct(s, jnp.float32, sharding=cut) for s in (shape, (2, 3, 64)))
    module = hlo.parse(jax.jit(loop).lower(x, w).compile().as_text())
    assert hlo.host_calls(module)
    assert hlo.copies(module, [hlo.Shape("f32", (4, 130, 16))])
    assert hlo.gathers(module, [hlo.Shape("f32", (2, 3, 16))])
