"""Modules of flax as targets: nnx and linen, with a cache and without, one llama in four forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from flax import linen, nnx

import specjax.adapters
from specjax.api import Decoder
from specjax.drafters import DraftModel, NGram, Plain
from specjax.io.load import from_checkpoint
from specjax.loop import Program
from specjax.testing import check_target
from specjax.testing.statistics import decode, num_traces, sampling_values
from specjax.testing.target_checks import TOLERANCE, pass_over
from specjax.verify import Coupled, Token

VOCAB, HIDDEN, INNER, HEADS, KEYS, SIZE, LAYERS, LONGEST = 12, 16, 24, 4, 2, 4, 2, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": LONGEST,
    "tie_word_embeddings": True,
}
LINEARS = {
    "q": ("self_attn.q_proj", HIDDEN, HEADS * SIZE),
    "k": ("self_attn.k_proj", HIDDEN, KEYS * SIZE),
    "v": ("self_attn.v_proj", HIDDEN, KEYS * SIZE),
    "o": ("self_attn.o_proj", HEADS * SIZE, HIDDEN),
    "gate": ("mlp.gate_proj", HIDDEN, INNER),
    "up": ("mlp.up_proj", HIDDEN, INNER),
    "down": ("mlp.down_proj", INNER, HIDDEN),
}
NORMS = {"before": "input_layernorm", "after": "post_attention_layernorm"}
KEPT = jax.ShapeDtypeStruct((KEYS, SIZE), jnp.float32)
PROMPTS = [[1, 2, 3, 1, 2], [7], [4, 4, 4, 4, 4, 4, 4, 9]]
GREEDY = sampling_values(len(PROMPTS), 0.0)


# The same llama twice: what its parts are called is all that run() and run_block() ask.


def rotate(x, positions):
    angle = positions[..., None, None].astype(jnp.float32) * jnp.asarray([1.0, 0.01], jnp.float32)
    left, right = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def mix(query, keys, values, mask):
    query = query.reshape(*query.shape[:2], KEYS, -1, SIZE)
    scores = jnp.einsum("btgnd,bsgd->bgnts", query, keys) * SIZE**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30))
    mixed = jnp.einsum("bgnts,bsgd->btgnd", weights, values)
    return mixed.reshape(*mixed.shape[:2], -1)


def run_block(block, x, positions, mask, update):
    y = block.before(x)
    query, keys, values = (
        part(y).reshape(*y.shape[:2], -1, SIZE) for part in (block.q, block.k, block.v)
    )
    keys, values = update(rotate(keys, positions), values)
    x = x + block.o(mix(rotate(query, positions), keys, values, mask))
    y = block.after(x)
    return x + block.down(jax.nn.silu(block.gate(y)) * block.up(y))


def run(model, tokens, positions, mask, update):
    x = model.dropout(model.embedding(tokens))
    for index, block in enumerate(model.blocks):
        x = run_block(block, x, positions, mask, partial(update, index))
    return model.embedding.attend(model.norm(x))


def run_alone(model, tokens):
    length = tokens.shape[1]
    positions = jnp.arange(length, dtype=jnp.int32)[None]
    causal = jnp.tril(jnp.ones((1, length, length), bool))
    return run(model, tokens, positions, causal, lambda layer, *new: new)


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        for name, (_, inputs, outputs) in LINEARS.items():
            setattr(self, name, nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs))
        for name in NORMS:
            setattr(self, name, nnx.RMSNorm(HIDDEN, epsilon=1e-5, rngs=rngs))


class NnxLlama(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(HIDDEN, epsilon=1e-5, rngs=rngs)

    def __call__(self, tokens):
        return run_alone(self, tokens)


class NnxCached(NnxLlama):
    def __call__(self, tokens, positions, mask, cache):
        return run(self, tokens, positions, mask, cache.update)


class LinenBlock(linen.Module):
    def setup(self):
        for name, (_, _, outputs) in LINEARS.items():
            setattr(self, name, linen.Dense(outputs, use_bias=False))
        for name in NORMS:
            setattr(self, name, linen.RMSNorm(epsilon=1e-5))


class LinenLlama(linen.Module):
    deterministic: bool = True

    def setup(self):
        self.embedding = linen.Embed(VOCAB, HIDDEN)
        self.dropout = linen.Dropout(0.5, deterministic=self.deterministic)
        self.blocks = [LinenBlock() for _ in range(LAYERS)]
        self.norm = linen.RMSNorm(epsilon=1e-5)

    def __call__(self, tokens):
        return run_alone(self, tokens)


class LinenCached(LinenLlama):
    def __call__(self, tokens, positions, mask, cache):
        def update(layer, keys, values):
            (pair,) = cache.update(layer, {"keys": keys, "values": values})
            return pair["keys"], pair["values"]

        return run(self, tokens, positions, mask, update)


class Tensors(dict):
    """A llama's weights as the Hub names them."""

    config = CONFIG

    @classmethod
    def random(cls, seed):
        shapes = {"embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
        for i in range(LAYERS):
            shapes |= {f"layers.{i}.{name}": (HIDDEN,) for name in NORMS.values()}
            shapes |= {f"layers.{i}.{name}": (o, n) for name, n, o in LINEARS.values()}
        rng = np.random.default_rng(seed)
        return cls(
            {
                f"model.{name}.weight": rng.normal(size=shape).astype(np.float32)
                * (shape[-1] ** -0.5 if len(shape) == 2 else 1)
                for name, shape in shapes.items()
            }
        )

    def names(self):
        return self.keys()

    def shape(self, name):
        return self[name].shape

    def read(self, name, index=()):
        return self[name][index]

    def tokenizer(self):
        return None

    def block(self, index):
        prefix = f"model.layers.{index}."
        linears = {n: {"kernel": self[f"{prefix}{x[0]}.weight"].T} for n, x in LINEARS.items()}
        norms = {n: {"scale": self[f"{prefix}{x}.weight"]} for n, x in NORMS.items()}
        return jax.tree.map(jnp.asarray, linears | norms)

    def ends(self):
        return {
            "embedding": {"embedding": jnp.asarray(self["model.embed_tokens.weight"])},
            "norm": {"scale": jnp.asarray(self["model.norm.weight"])},
        }


def nnx_module(kind, tensors):
    module = kind(nnx.Rngs(0))
    nnx.update(module, tensors.ends() | {"blocks": {i: tensors.block(i) for i in range(LAYERS)}})
    return module


def linen_variables(tensors):
    return {"params": tensors.ends() | {f"blocks_{i}": tensors.block(i) for i in range(LAYERS)}}


def targets(seed):
    tensors, sizes = Tensors.random(seed), {"vocab_size": VOCAB, "max_length": LONGEST}
    from_nnx = partial(specjax.adapters.nnx.target, **sizes)
    from_linen = partial(specjax.adapters.linen.target, variables=linen_variables(tensors), **sizes)
    return {
        "nnx": from_nnx(nnx_module(NnxLlama, tensors)),
        "nnx-cached": from_nnx(nnx_module(NnxCached, tensors), cache=[(KEPT, KEPT)] * LAYERS),
        "linen": from_linen(LinenLlama()),
        "linen-cached": from_linen(
            LinenCached(), cache=[({"keys": KEPT, "values": KEPT},)] * LAYERS
        ),
    }


TARGETS = targets(seed=0)
EACH = pytest.mark.parametrize("name", TARGETS)
SLOW = ("nnx", "linen", "linen-cached")  # they share their code, but compile anew
MOSTLY = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in TARGETS]
)


@pytest.fixture(scope="module")
def decoder():
    """The package's own model on the same weights."""
    return from_checkpoint(Tensors.random(0))


@pytest.fixture(scope="module")
def plain(decoder):
    return texts(decoder, Plain(3), Coupled())


def texts(target, drafter, verifier):
    state = decode(Program(target, drafter, verifier), PROMPTS, 24, values=GREEDY)
    return np.asarray(state.context.tokens).tolist()


@EACH
def test_logits_are_those_of_the_decoder_on_the_same_weights(name, decoder):
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (2, 9)), jnp.int32)
    start = jnp.zeros(2, jnp.int32)
    want, _ = pass_over(decoder, tokens, start, decoder.init_cache(2, 12))
    found, _ = pass_over(TARGETS[name], tokens, start, TARGETS[name].init_cache(2, 12))
    assert found.dtype == np.float32
    assert np.abs(found - want).max() < TOLERANCE
    assert np.abs(want).max() > 1


@MOSTLY
def test_each_passes_the_suite_of_targets(name):
    assert len(check_target(TARGETS[name])) >= 6


@MOSTLY
def test_greedy_drafts_give_the_tokens_of_plain_decoding(name, plain):
    assert texts(TARGETS[name], NGram(3), Coupled()) == plain


@MOSTLY
def test_new_weights_make_no_trace(name):
    first = texts(TARGETS[name], NGram(3), Coupled())
    before = num_traces()
    assert texts(targets(seed=5)[name], NGram(3), Coupled()) != first
    assert num_traces() == before


@pytest.mark.parametrize(
    ("target", "model"),
    [
        pytest.param(*x, marks=pytest.mark.slow)
        for x in (("linen", "nnx-cached"), ("nnx-cached", "linen"))
    ],
)
def test_an_adapted_module_drafts_for_its_own_weights_and_is_always_right(target, model):
    program = Program(TARGETS[target], DraftModel(TARGETS[model], 3), Token())
    state = decode(program, PROMPTS, 24, values=GREEDY)
    want = np.zeros((4, 4))
    want[3, 3] = 6
    np.testing.assert_array_equal(state.stats.outcomes, np.broadcast_to(want, (3, 4, 4)))


def test_the_module_itself_stays_as_it_was():
    """Its dropout goes on, and the target's is off."""
    module = nnx_module(NnxLlama, Tensors.random(0))
    before = jax.tree.leaves(nnx.state(module))
    target = specjax.adapters.nnx.target(module, vocab_size=VOCAB, max_length=LONGEST)
    assert not module.dropout.deterministic
    assert all(a is b for a, b in zip(before, jax.tree.leaves(nnx.state(module)), strict=True))
    assert target.call == TARGETS["nnx"].call
    assert hash(target.call) == hash(TARGETS["nnx"].call)


class Positioned(nnx.Module):
    """Learned positions: past the last one this table holds NaN."""

    def __init__(self, rngs):
        self.tokens = nnx.Embed(VOCAB, SIZE, rngs=rngs)
        self.places = nnx.Embed(8, SIZE, rngs=rngs)

    def __call__(self, tokens):
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        causal = jnp.tril(jnp.ones((1, tokens.shape[1], tokens.shape[1]), bool))
        return self.attend(tokens, places, causal, lambda x: x)

    def attend(self, tokens, places, mask, update):
        x = self.tokens(tokens) + self.places(places)
        seen = update(x)
        scores = jnp.where(mask, jnp.einsum("btd,bsd->bts", x, seen), -1e30)
        return self.tokens.attend(x + jax.nn.softmax(scores) @ seen)


class PositionedCached(Positioned):
    def __call__(self, tokens, positions, mask, cache):
        return self.attend(tokens, positions, mask, lambda x: cache.update(0, x)[0])


@pytest.mark.parametrize("cached", [False, True])
def test_drafts_past_the_longest_sequence_change_nothing_before(cached):
    kind, entry = (Positioned, None), (PositionedCached, [(jax.ShapeDtypeStruct((SIZE,), "f4"),)])
    module, cache = entry if cached else kind
    target = specjax.adapters.nnx.target(
        module(nnx.Rngs(0)), vocab_size=VOCAB, max_length=8, cache=cache
    )
    tokens = jnp.asarray([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]], jnp.int32)
    start = jnp.zeros(1, jnp.int32)
    over, _ = pass_over(target, tokens, start, target.init_cache(1, 12))
    within, _ = pass_over(target, tokens[:, :8], start, target.init_cache(1, 12))
    np.testing.assert_allclose(over[:, :8], within, atol=TOLERANCE)


def test_a_tokenizer_serves_text():
    target = specjax.adapters.nnx.target(
        nnx.Embed(3, 3, rngs=nnx.Rngs(0)), vocab_size=3, tokenizer=byte_tokenizer([], "abc")
    )
    assert Decoder(target).encode("cab") == [[2, 0, 1]]


def test_half_precision_logits_are_widened():
    module = nnx.Embed(5, 5, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    target = specjax.adapters.nnx.target(module, vocab_size=5)
    tokens, start = jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)

    def one_pass():
        hidden, _, _ = target.extend(tokens, start, target.init_cache(1, 4), count=start + 2)
        return hidden, target.unembed(hidden)

    assert [x.dtype for x in jax.eval_shape(one_pass)] == [jnp.bfloat16, jnp.float32]


class Does(nnx.Module):
    """A module without weights whose call is a function of the test's."""

    def __init__(self, call):
        self.call = call


class Takes4(Does):
    def __call__(self, tokens, positions, mask, cache):
        return self.call(tokens, cache)


class Takes1(Does):
    def __call__(self, tokens):
        return self.call(tokens)


def logits(tokens, size=VOCAB, dtype=jnp.float32):
    return jnp.zeros((*tokens.shape, size), dtype)


def updates(*layers, shape=(KEYS, SIZE), num=2):
    def call(tokens, cache):
        for layer in layers:
            cache.update(layer, *[jnp.zeros((*tokens.shape, *shape), jnp.float32)] * num)
        return logits(tokens)

    return call


class HoldsArray(linen.Module):
    table: jax.Array

    def __call__(self, tokens):
        return self.table[tokens]


TWO = [(KEPT, KEPT)] * 2
FROM_NNX = {
    "vocab_size=12": (Takes1(partial(logits, size=5)), None),
    r"array of logits alone, got a tuple": (Takes1(lambda tokens: (logits(tokens), 0)), None),
    r"returned int32\[2, 5, 12\]": (Takes1(partial(logits, dtype=jnp.int32)), None),
    r"layers \[1\] are never written": (Takes4(updates(0)), TWO),
    r"layers \[0, 1\] are never written": (Takes4(updates()), TWO),
    r"layer 2 is unknown; .* layers 0\.\.1": (Takes4(updates(0, 1, 2)), TWO),
    "layer -1 is unknown": (Takes4(updates(-1, 0)), TWO),
    "layer 0 is written twice": (Takes4(updates(0, 0)), TWO),
    r"layer 0 takes entries of shapes \(\[2, 3, 2, 4\], \[2, 3, 2, 4\]\), got \(\[2, 3, 8\]": (
        Takes4(updates(0, shape=(8,))),
        TWO,
    ),
    r"got \(\[2, 3, 2, 4\],\)": (Takes4(updates(0, num=1)), TWO),
    "one with a cache is called as": (Takes1(logits), TWO),
    "one without a cache is called as": (Takes4(updates(0, 1)), None),
    "cache: must be a list with a tuple for each layer": (Takes4(updates()), []),
    "cache: layer 0 must be a tuple": (Takes4(updates(0)), [KEPT]),
    r"cache: entries must be jax.ShapeDtypeStruct": (
        Takes4(updates(0)),
        [((KEYS, SIZE), jnp.float32)],
    ),
    "linen modules go to": (LinenLlama(), None),
}


@pytest.mark.parametrize("message", FROM_NNX)
def test_what_breaks_the_contract_is_named(message):
    module, cache = FROM_NNX[message]
    with pytest.raises(ValueError, match=message):
        specjax.adapters.nnx.target(module, vocab_size=VOCAB, cache=cache)


FROM_LINEN = {
    "nnx modules go to": (Takes1(logits), {}, {}),
    "without dropout": (LinenLlama(deterministic=False), None, {}),
    "cannot be applied to these variables": (LinenLlama(), {"params": {}}, {}),
    "must be hashable": (HoldsArray(jnp.zeros((VOCAB, VOCAB), jnp.float32)), {}, {}),
    "vocab_size: must be an int": (LinenLlama(), None, {"vocab_size": 0}),
    "max_length: must be an int": (LinenLlama(), None, {"max_length": -1}),
}


@pytest.mark.parametrize("message", FROM_LINEN)
def test_what_linen_cannot_run_is_named(message):
    module, variables, changes = FROM_LINEN[message]
    variables = linen_variables(Tensors.random(0)) if variables is None else variables
    with pytest.raises(ValueError, match=message):
        specjax.adapters.linen.target(module, variables, **{"vocab_size": VOCAB, **changes})


@EACH
def test_what_needs_layers_is_refused(name):
    target = TARGETS[name]
    tokens, start = jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)

    def extend(inputs=tokens, **arguments):
        target.extend(inputs, start, target.init_cache(1, 4), count=start + 2, **arguments)

    with pytest.raises(ValueError, match="inputs: an adapted module takes token ids"):
        extend(jnp.zeros((1, 2, HIDDEN), jnp.float32))
    with pytest.raises(ValueError, match=r"layers: .* cannot run layers \(0,\)"):
        extend(layers=(0,))
    with pytest.raises(ValueError, match=r"capture: .* not even \(0,\)"):
        extend(capture=(0,))
    with pytest.raises(ValueError, match="embed: an adapted module"):
        target.embed(tokens)
    if "cached" not in name:
        with pytest.raises(ValueError, match="positions: a module without a cache"):
            extend(positions=tokens)
