"""The program of a setup without weights: shapes, and how each array lies on the mesh."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specjax import compiled
from specjax.api import Decoder
from specjax.cache import KVCache
from specjax.drafters import DraftModel, NGram
from specjax.models import Config, DecoderLM, sharded, weight_sharding
from specjax.models.layers import pack, parameters
from specjax.plan.setup import PLACEMENTS, Setup
from specjax.processors import chain
from specjax.program import Program
from specjax.request import Request, build
from specjax.sharding import RULES, Layout
from specjax.types import State


class Described(Layout):
    """A layout that describes arrays where others constrain them."""

    def constrain(self, x: Any, axes: Any, units: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding(axes, units))

    def whole(self, tree: Any) -> Any:
        """Every device holds each array."""
        return jax.tree.map(lambda x: self.constrain(x, (), {}), tree)


def abstract_model(config: Config, layout: Layout, dtype: str) -> DecoderLM:
    """A model whose weights are shapes, laid over a mesh as ``load(..., mesh=)`` would."""
    config = sharded(config, layout)
    leaves = {
        path: jax.ShapeDtypeStruct(
            one.shape, jnp.dtype(dtype), sharding=weight_sharding(config, layout, one)
        )
        for path, one in parameters(config).items()
    }
    return DecoderLM(pack(leaves), config, layout=layout)


def abstract_program(setup: Setup, mesh: Mesh) -> Program:
    """The program that ``Decoder`` would run for this setup."""
    target = abstract_model(setup.target, Layout(mesh, RULES), setup.dtype)
    drafter = None
    if setup.drafter is not None:
        layout = Layout(mesh, PLACEMENTS[setup.placement])
        model = abstract_model(setup.drafter, layout, setup.dtype)
        drafter = DraftModel(model, setup.draft_length)
    elif setup.draft_length:
        drafter = NGram(setup.draft_length)
    return Decoder(target, drafter, prefill_chunk=setup.chunk).program


def abstract_call(setup: Setup, mesh: Mesh) -> tuple[Program, Request]:
    """What ``Decoder.prepare`` would make: a program, and a batch, whole on every device."""
    program = abstract_program(setup, mesh)
    rows = [[0] * setup.prompt_length] * setup.batch
    settings = {"max_new_tokens": setup.context - setup.prompt_length, "seed": 0}
    request = build(
        rows,
        settings,
        vocab_size=program.target.vocab_size,
        depth=program.drafter.depth,
        longest=setup.context,
    )
    program = dataclasses.replace(program, processors=chain(request.sampling))
    return program, described(mesh).whole(request)


def abstract_state(program: Program, request: Request, chunk: int) -> State:
    """What ``compiled.begin`` would return, laid out as the loop lays it out."""
    state = jax.eval_shape(lambda p, r: compiled.begin(p, r, chunk=chunk), program, request)
    target = program.target
    cache = abstract_cache(target, state.cache)
    drafter = _laid_out(state.drafter, getattr(program.drafter, "model", target))
    state = _laid_out(dataclasses.replace(state, cache=None, drafter=None), target)
    return dataclasses.replace(state, cache=cache, drafter=drafter)


def abstract_cache(model: DecoderLM, cache: KVCache) -> KVCache:
    """A model's cache, laid out as it lays it out."""
    return cache.laid_out(_described(model), model.config.num_cache_heads)


def _laid_out(tree: Any, model: DecoderLM) -> Any:
    def one(x):
        return abstract_cache(model, x) if isinstance(x, KVCache) else _described(model).rows(x)

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, KVCache))


def _described(model: DecoderLM) -> Described:
    assert model.layout is not None
    return Described(model.layout.mesh, dict(model.layout.rules))


def described(mesh: Mesh) -> Described:
    """Describe arrays on a mesh, by the rules that cut them."""
    return Described(mesh, RULES)
