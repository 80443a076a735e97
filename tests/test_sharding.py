"""On a mesh of eight devices a model decodes what it does on one, and no cache is gathered."""

import dataclasses
import itertools
import math
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from mesh_cells import (
    DENSE,
    FAST,
    PROMPTS,
    SPARSE,
    TEMPERATURES,
    WINDOWED,
    Model,
    config,
    decode,
    on_one_device,
    random_model,
)

import specjax
from specjax import compiled, drafters
from specjax.models.layers import unpack
from specjax.sharding import REPLICATED, RULES, Layout

TINY = random_model(config(2))


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model on a mesh of (data, model), and the rules of target and draft model."""

    model: Model
    mesh: tuple[int, int]
    rules: str = "cut"
    draft_rules: str = "cut"

    def __str__(self) -> str:
        shape = self.model.config
        kinds = f"{shape.num_kv_heads}kv-{'sparse' if shape.experts else 'dense'}"
        mesh = "x".join(map(str, self.mesh))
        return f"{mesh}-{kinds}-{self.model.drafter}-{self.rules}-{self.draft_rules}"

    def decoder(self) -> specjax.Decoder:
        return self.model.decoder(specjax.make_mesh(*self.mesh), self.rules, self.draft_rules)


SAMPLED = Model(config(1, DENSE), num_samples=2, filters=True)
CI = [
    Cell(SAMPLED, (8, 1)),
    Cell(Model(config(2, SPARSE)), (1, 8)),
    Cell(Model(config(8, DENSE), "model"), (4, 2), draft_rules="whole"),
    Cell(Model(config(8, DENSE), "tree"), (2, 4)),
]
EVERY = [
    Cell(
        Model(config(heads, kind, kind), drafter),
        mesh,
        rules="apart" if kind is SPARSE and heads != 2 else "cut",
        draft_rules="whole" if heads == 1 else "cut",
    )
    for heads, kind, drafter in itertools.product(
        (1, 2, 8), (DENSE, SPARSE), ("ngram", "model", "tree")
    )
    for mesh in ((1, 8), (2, 4), (4, 2), (8, 1))
]
UNEVEN = config(3, DENSE, vocab_size=61, num_heads=6, intermediate_size=42)
ODD = [
    Cell(Model(UNEVEN), (2, 4)),
    Cell(Model(config(3, SPARSE, DENSE, vocab_size=61, num_heads=9), "model"), (1, 8), "apart"),
    Cell(Model(config(2, DENSE, WINDOWED), "tree"), (2, 4)),
    Cell(Model(config(2, DENSE, SPARSE), int8=True), (2, 4)),
    Cell(Model(config(2, DENSE, SPARSE), int8=True), (1, 8), "apart"),
    Cell(Model(config(1, WINDOWED), batch=3), (2, 4)),
    Cell(Model(config(1, WINDOWED), int8=True, batch=3), (2, 4)),
    Cell(Model(config(8, DENSE), "model", batch=3, num_samples=2, filters=True), (4, 2)),
]


@pytest.mark.parametrize("cell", CI, ids=str)
def test_a_mesh_decodes_what_one_device_does(cell):
    require_one_devices_answer(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", EVERY + ODD, ids=str)
def test_every_mesh_decodes_what_one_device_does(cell):
    require_one_devices_answer(cell)


def require_one_devices_answer(cell: Cell) -> None:
    """Tokens and counts are equal, log-probabilities close, and nothing large was exchanged."""
    expected, decoder = on_one_device(cell.model), cell.decoder()
    call = cell.model.prepare(decoder)
    result, program = decode(decoder, call)
    require_equal(result, expected)
    assert 1 < result.metrics.mean_acceptance_length < 4
    text, shape = program.as_text(), cell.model.config
    if cell.model.int8:
        return  # a CPU multiplies some channels at a time, wherever they are
    require_nothing_gathered(call, text)
    if shape.experts is None and shape is not UNEVEN and cell.mesh[1] > 1:
        sums = re.findall(r" all-reduce(?:-start)?\(.*?op_name=\"(\S*)\"", text)
        per_pass = sum("/verify/" in origin and origin.endswith("dot_general") for origin in sums)
        assert per_pass == 2 * shape.num_layers


def require_equal(result: specjax.Result, expected: specjax.Result) -> None:
    assert result.tokens == expected.tokens
    assert result.finish_reasons == expected.finish_reasons
    assert np.array_equal(result.metrics.outcomes, expected.metrics.outcomes)
    for ours, theirs in zip(result.row_metrics, expected.row_metrics, strict=True):
        assert np.array_equal(ours.outcomes, theirs.outcomes)
        assert ours.num_draft_tokens == theirs.num_draft_tokens
    require_close(result.logprobs or [], expected.logprobs or [])


def require_close(rows, expected) -> None:
    for ours, theirs in zip(rows, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


EXCHANGE = re.compile(
    r"= (\(.*?\)|\S+) (all-gather|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\(.*?op_name=\"(\S*)\""
)


def exchanges(text: str) -> list[tuple[str, int, str]]:
    """Kind, elements and origin of whatever devices exchange but sums."""
    found = []
    for shapes, kind, where in EXCHANGE.findall(text):
        sizes = [re.findall(r"\d+", shape) for shape in re.findall(r"\[([\d,]*)\]", shapes)]
        found.append((kind, max(math.prod(map(int, size)) for size in sizes), where))
    return found


def require_nothing_gathered(call: Any, text: str) -> None:
    """No weight and no cache goes from device to device, whole or as a device holds it."""
    mesh = call.program.layout.mesh
    begin = partial(compiled.begin, chunk=8)
    cache = jax.eval_shape(begin, call.program, call.request).cache
    layers = zip(cache.layers, cache.rings, strict=True)
    caches = [math.prod(x.shape) for pair, ring in layers for x in pair if not ring]
    kernels = [
        (math.prod(leaf.shape[-2:]), math.prod(leaf.sharding.shard_shape(leaf.shape)[-2:]))
        for path, leaf in unpack(call.program.target.weights).items()
        if path.endswith((".kernel", ".weight")) and "router" not in path
    ]
    most = min(*(size for size, _ in kernels), *(x // mesh.shape["data"] for x in caches))
    held = min(*(size for _, size in kernels), *(x // mesh.size for x in caches))
    for kind, size, where in exchanges(text):
        assert size < (most if kind == "all-gather" else held), (kind, size, where)


def test_exchanges_are_seen_in_a_program():
    text = """
      a = f32[128,80]{1,0} all-gather(x), dimensions={1}, metadata={op_name="jit(f)/w"}
      b = (f32[8]{0}, s32[2,3]{1,0}) all-to-all(y, z), metadata={op_name="jit(f)/v"}
    """
    assert exchanges(text) == [("all-gather", 10240, "jit(f)/w"), ("all-to-all", 8, "jit(f)/v")]


@pytest.fixture(scope="module")
def stepping():
    """A decoder on (2, 4), whose state is cut both ways, and a call."""
    decoder = Cell(SAMPLED, (2, 4)).decoder()
    return decoder, SAMPLED.prepare(decoder)


def test_a_stream_gives_the_same_and_updates_its_caches_in_place(stepping, monkeypatch):
    _, call = stepping
    state = compiled.begin(call.program, call.request, chunk=8)
    program = compiled.advance.lower(call.program, state, jnp.int32(2))
    program = program.compile(compiler_options=FAST)
    cache = [x for pair in state.cache.layers for x in pair]
    assert all(x.sharding.shard_shape(x.shape)[::2] == (8, 32) for x in cache)
    held = sum(x.nbytes for x in cache) // 8
    assert program.memory_analysis().alias_size_in_bytes >= held
    monkeypatch.setattr(compiled, "begin", lambda *_, chunk: state)
    monkeypatch.setattr(compiled, "advance", program)
    stream = specjax.stream.Stream(call, rounds=2, chunk=8, tokenizer=None)
    pieces = [[] for _ in range(16)]
    for piece in stream:
        pieces[piece.row] += piece.tokens
    assert pieces == stream.result.tokens
    require_equal(stream.result, on_one_device(SAMPLED))


def test_scores_are_those_of_one_device(stepping):
    decoder, _ = stepping
    expected = on_one_device(SAMPLED)
    scores = decoder.score(PROMPTS[0], expected.tokens[0])
    np.testing.assert_allclose(scores, expected.logprobs[0], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_call_is_resumed_on_a_mesh(stepping):
    decoder, _ = stepping
    settings = {"temperature": TEMPERATURES, "seed": 0, "n": 2, "logprobs": 2}
    settings |= {"top_p": 0.9, "top_k": 20}
    begun = decoder.generate(PROMPTS, max_new_tokens=10, keep_state=True, **settings)
    result, expected = decoder.resume(begun, max_new_tokens=14), on_one_device(SAMPLED)
    assert result.tokens == expected.tokens  # what was drafted across the seam differs
    require_close(result.logprobs, expected.logprobs)


@jax.jit
def pass_over(target, tokens):
    """Logits after every position of a batch of prompts."""
    batch, length = tokens.shape
    zeros = jnp.zeros(batch, jnp.int32)
    cache = target.init_cache(batch, length)
    hidden, cache, _ = target.extend(tokens, zeros, cache, count=zeros + length)
    return target.unembed(hidden), cache


def test_what_does_not_divide_is_whole_on_every_device():
    one, tokens = Model(UNEVEN).target(), jnp.asarray([[1, 2, 3, 4], [7, 6, 5, 60]], jnp.int32)
    target = specjax.shard(one, specjax.make_mesh(2, 4))
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(target.weights))
    logits, cache = pass_over(target, tokens)
    np.testing.assert_allclose(logits, pass_over(one, tokens)[0], rtol=0, atol=1e-5)
    key = cache.layers[0][0]
    assert key.sharding.shard_shape(key.shape) == (1, 4, 3 * 32)  # rows are cut all the same


def test_a_device_may_hold_whole_experts():
    one, tokens = random_model(config(2, SPARSE)), jnp.asarray([[1, 2, 3], [9, 8, 7]], jnp.int32)
    target = specjax.shard(one, specjax.make_mesh(2, 4), {**RULES, "experts": "model"})
    experts = target.weights.layers[0].experts.up.channels
    assert experts.sharding.shard_shape(experts.shape) == (2, 128, 128)
    np.testing.assert_allclose(
        pass_over(target, tokens)[0], pass_over(one, tokens)[0], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("heads", "held", "share"), [(1, 8, 1.0), (2, 8, 0.5), (8, 8, 0.125)])
def test_each_device_caches_one_key_head(heads, held, share):
    one = Model(config(heads, DENSE)).target()
    target = specjax.shard(one, specjax.make_mesh(1, 8))
    assert target.config.num_cache_heads == held
    cache, whole = (lm.init_cache(2, 16) for lm in (target, one))
    on_first = sum(x.addressable_data(0).nbytes for x in jax.tree.leaves(cache))
    assert on_first == share * sum(x.nbytes for x in jax.tree.leaves(whole))


def test_a_mesh_of_explicit_axes_will_do():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    one, tokens = TINY, jnp.asarray([[1, 2], [3, 4]], jnp.int32)
    logits, _ = pass_over(specjax.shard(one, mesh), tokens)
    np.testing.assert_allclose(logits, pass_over(one, tokens)[0], rtol=0, atol=1e-5)


def test_axes_may_have_other_names():
    mesh = jax.make_mesh((8,), ("chips",), axis_types=(AxisType.Auto,))
    layout = Layout(mesh, {**REPLICATED, "batch": None, "mlp": "chips"})
    assert layout.size("mlp") == 8
    assert layout.size("vocab") == layout.size("batch") == 1


def test_a_rule_for_no_axis_is_refused():
    with pytest.raises(ValueError, match=r"rules: there is no axis \['heads'\]; .*kv_heads"):
        specjax.shard(TINY, specjax.make_mesh(), {**RULES, "heads": "model"})


def test_a_mesh_that_no_rule_names_is_refused():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match=r"mesh: its axes \('x',\) are none .*model.*rules="):
        specjax.shard(TINY, mesh)


@pytest.mark.parametrize("shape", [(3, None), (0, 1), (2, 5), (16, 1), (1, 0)])
def test_a_mesh_of_more_devices_than_there_are_is_refused(shape):
    with pytest.raises(ValueError, match=r"^(data|model): .*8"):
        specjax.make_mesh(*shape)


def test_a_model_is_laid_out_once():
    mesh = specjax.make_mesh(1, 8)
    target = specjax.shard(TINY, mesh)
    with pytest.raises(ValueError, match="target: lies on a mesh already"):
        specjax.shard(target, mesh)


def test_a_draft_model_on_a_mesh_wants_a_target_there():
    drafter = drafters.DraftModel(specjax.shard(TINY, specjax.make_mesh(1, 8)), 3)
    with pytest.raises(ValueError, match="target: lies on one device, and the drafter's"):
        specjax.Decoder(TINY, drafter)
