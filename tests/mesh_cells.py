"""Small models, and what they decode on one device and on a mesh of several."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import compiled, drafters
from specjax.call import Call
from specjax.models import Config, DecoderLM, Experts, LayerKind, quantize
from specjax.models.layers import pack, parameters
from specjax.models.rope import Rope
from specjax.sampling import Temperature
from specjax.sharding import REPLICATED, RULES

APART = {**RULES, "experts": "model"}
"""Every device holds whole experts, instead of a part of each."""

TABLES: Mapping[str, Any] = {"cut": RULES, "apart": APART, "whole": REPLICATED}

PROMPTS = [[1, 2, 3, 4, 1, 2, 3], [5, 6, 7], [9, 8, 9, 8, 9, 8], [3]] * 2
TEMPERATURES = [0.0, 1.0] * 4
"""Greedy and sampled rows lie side by side."""

FAST: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Compiles in two thirds of the time. How a program is cut up does not depend on it."""

DENSE, WINDOWED = LayerKind(Rope(32)), LayerKind(Rope(32), window=6)
SPARSE = LayerKind(Rope(32), sparse=True)


def config(kv_heads: int = 8, *layers: LayerKind, **changes: Any) -> Config:
    """Every kernel of it is larger than any logits or hidden states of the batch."""
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
    heads = {"num_heads": 8, "num_kv_heads": kv_heads}
    experts = Experts(8, 2, 128) if SPARSE in layers else None
    shape = {**sizes, **heads, "layers": layers or (DENSE,), "experts": experts, "max_length": 512}
    return Config(**{**shape, **changes})


@cache
def random_model(shape: Config, seed: int = 0) -> DecoderLM:
    """As ``random_weights`` makes one, but by numpy: nothing is compiled for it."""
    rng = np.random.default_rng(seed)

    def leaf(path: str, size: tuple[int, ...]) -> jax.Array:
        if path.endswith("norm.scale"):
            return jnp.ones(size, jnp.float32)
        deviation = size[-2 if path.endswith("kernel") else -1] ** -0.5
        return jnp.asarray(rng.normal(size=size, scale=deviation), jnp.float32)

    leaves = {path: leaf(path, one.shape) for path, one in parameters(shape).items()}
    return DecoderLM(pack(leaves), shape)


@dataclasses.dataclass(frozen=True)
class Model:
    """A target, what drafts for it, and the first rows of a batch.

    Without ``filters`` laws are cut by nothing but the temperature, which compiles sooner.
    """

    config: Config
    drafter: str = "ngram"
    int8: bool = False
    batch: int = 8
    num_samples: int = 1
    filters: bool = False

    def target(self) -> DecoderLM:
        lm = random_model(self.config)
        return quantize(lm) if self.int8 else lm

    def draft_model(self) -> DecoderLM:
        """The target, a little off: it is right often and not always."""
        one, other = random_model(self.config), random_model(self.config, seed=1)
        weights = jax.tree.map(lambda x, y: 0.9 * x + 0.3 * y, one.weights, other.weights)
        return DecoderLM(weights, self.config)

    def decoder(self, mesh=None, rules: str = "cut", draft_rules: str = "cut") -> specjax.Decoder:
        """On a mesh, or on one device."""

        def put(model, table):
            return model if mesh is None else specjax.shard(model, mesh, TABLES[table])

        if self.drafter == "ngram":
            drafter: Any = drafters.NGram(3)
        elif self.drafter == "model":
            drafter = drafters.DraftModel(put(self.draft_model(), draft_rules), 3)
        else:
            drafter = drafters.DraftTree(put(self.draft_model(), draft_rules), (2, 1))
        target = put(self.target(), rules)
        return specjax.Decoder(target, drafter, verifier="coupled", prefill_chunk=8)

    def prepare(self, decoder: specjax.Decoder) -> Call:
        settings: dict[str, Any] = {"temperature": TEMPERATURES[: self.batch], "seed": 0}
        if self.filters:
            settings |= {"top_p": 0.9, "top_k": 20}
        if self.num_samples > 1:
            settings |= {"n": self.num_samples, "logprobs": 2}
        call = decoder.prepare(PROMPTS[: self.batch], max_new_tokens=24, **settings)
        if self.filters:
            return call
        program = call.program.replace(processors=(Temperature(),))
        return dataclasses.replace(call, program=program)


def decode(decoder: specjax.Decoder, call: Call) -> tuple[specjax.Result, Any]:
    """The result of a call, and the program as it was compiled."""
    lowered = compiled.generate.lower(call.program, call.request, chunk=8)
    program = lowered.compile(compiler_options=FAST)
    output, _ = program(call.program, call.request)
    return decoder.collect(call, output), program


@cache
def on_one_device(model: Model) -> specjax.Result:
    """The answer that every mesh must give, worked out once."""
    decoder = model.decoder()
    return decode(decoder, model.prepare(decoder))[0]
