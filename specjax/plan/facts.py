"""What the TPU's compiler makes of a setup: memory, exchanges, copies; no TPU and no weights."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specjax import compiled
from specjax.plan import hlo
from specjax.plan.abstract import (
    abstract_cache,
    abstract_call,
    abstract_model,
    abstract_state,
    described,
)
from specjax.plan.setup import Setup
from specjax.plan.topology import mesh
from specjax.sharding import RULES, Layout

SCOPES = ("draft", "verify", "accept", "commit")
"""The parts of a round."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
_TEMPORARIES = re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)")


@dataclasses.dataclass(frozen=True)
class ProgramFacts:
    """One compiled program on one device. Memory is in bytes.

    ``core_seconds`` is what compiling took of all cores together. ``aliased`` is what results
    share with arguments. ``exchanges`` are those of each part of a round, by kind. ``gathered``
    and ``copied`` name operations that bring a weight or a cache together, or write a whole cache
    anew; ``turned`` those that lay a weight out anew, ``host_calls`` those inside loops that wait
    for the host. ``has_round`` says that one loop holds all parts of a round. ``block_bytes`` is
    what one turn of the attention loops of all layers reads of the target's cache.
    """

    seconds: float
    core_seconds: float
    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    code: int
    exchanges: Mapping[str, Mapping[str, int]]
    gathered: tuple[str, ...]
    copied: tuple[str, ...]
    turned: tuple[str, ...]
    host_calls: tuple[str, ...]
    has_round: bool
    block_bytes: int

    @property
    def required(self) -> int:
        """Bytes that the program needs in all."""
        return self.arguments + self.outputs + self.temporaries + self.code - self.aliased


@dataclasses.dataclass(frozen=True)
class Facts:
    """A setup, compiled. Memory is in bytes of one device, by the shapes of its parts.

    ``whole`` is the program of ``Decoder.generate``, ``streamed`` that of a dispatch of
    ``Decoder.stream``, which uses the memory of the state that it is given again. Both are None
    where the program does not fit: ``required`` then is what the compiler says it takes.
    """

    weights: int
    caches: int
    required: float
    available: float
    whole: ProgramFacts | None = None
    streamed: ProgramFacts | None = None

    @property
    def fits(self) -> bool:
        """Whether the compiler found room."""
        return self.whole is not None

    @property
    def temporaries(self) -> int | None:
        """What the whole program needs for a while beyond weights and caches."""
        return None if self.whole is None else max(self.whole.temporaries - self.caches, 0)

    @property
    def details(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return {"fits": self.fits, "temporaries": self.temporaries, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class _Arrays:
    """What one device holds: weights, and the caches of the target and of all models."""

    weights: tuple[hlo.Shape, ...]
    target_cache: tuple[hlo.Shape, ...]
    caches: tuple[hlo.Shape, ...]


def compile_setup(setup: Setup, *, streamed: bool = True) -> Facts:
    """Compile the programs of a setup for its topology, ahead of time.

    Args:
        setup: what to compile; its topology must be one of TPUs.
        streamed: compile the program of a stream, too.

    Raises:
        ValueError: libtpu is missing, or there is no such topology.
    """
    over = mesh(_slice(setup), setup.mesh_shape)
    program, request = abstract_call(setup, over)
    state = abstract_state(program, request, setup.chunk)
    own = getattr(state.drafter, "cache", None)
    arrays = _Arrays(
        _parts((program.target, program.drafter)), _parts(state.cache), _parts((state.cache, own))
    )
    sizes = _bytes(arrays.weights), _bytes(arrays.caches)
    try:
        whole = _compile(compiled.generate.trace, (program, request), arrays, chunk=setup.chunk)
        rounds = described(over).whole(jnp.int32(1))
        dispatch = None
        if streamed:
            dispatch = _compile(compiled.advance.trace, (program, state, rounds), arrays)
    except jax.errors.JaxRuntimeError as error:
        return Facts(*sizes, *_out_of_memory(error, sizes[0]))
    return Facts(*sizes, whole.required, setup.machine.chip.memory, whole, dispatch)


def _compile(trace: Any, arguments: tuple, arrays: _Arrays, **static: int) -> ProgramFacts:
    begin, busy = time.perf_counter(), time.process_time()
    program = trace(*arguments, **static).lower(lowering_platforms=("tpu",)).compile()
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    memory, module = program.memory_analysis(), hlo.parse(program.as_text() or "")
    in_rounds = list(module.everything(module.rounds))
    return ProgramFacts(
        seconds=seconds,
        core_seconds=busy,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        exchanges={scope: dict(hlo.collectives(module, scope)) for scope in SCOPES},
        gathered=_names(hlo.gathers(module, (*_matrices(arrays.weights), *arrays.caches))),
        copied=_names(hlo.copies(module, arrays.caches)),
        turned=_names(hlo.copies(module, _matrices(arrays.weights))),
        host_calls=_names(hlo.host_calls(module)),
        has_round=all(any(one.within(scope) for one in in_rounds) for scope in SCOPES),
        block_bytes=hlo.block_bytes(module, arrays.target_cache, "verify"),
    )


def pass_block_bytes(setup: Setup) -> int:
    """Bytes of the cache that each turn of a layer's attention reads in one verifying pass.

    The pass of a target of one layer is compiled alone: K + 1 positions of every row.
    """
    over = mesh(_slice(setup), setup.mesh_shape)
    layer = dataclasses.replace(setup.target, layers=setup.target.layers[:1])
    target = abstract_model(layer, Layout(over, RULES), setup.dtype)
    rows = described(over)
    cache = jax.eval_shape(lambda: target.init_cache(setup.batch, setup.slots))
    cache = abstract_cache(target, cache)
    start = rows.rows(jnp.zeros(setup.batch, jnp.int32))
    tokens = rows.rows(jnp.zeros((setup.batch, setup.draft_length + 1), jnp.int32))

    def verify(target, tokens, start, cache, count):
        with jax.named_scope("verify"):
            return target.extend(tokens, start, cache, count=count)

    traced = jax.jit(verify, donate_argnames="cache").trace(target, tokens, start, cache, start)
    program = traced.lower(lowering_platforms=("tpu",)).compile()
    return hlo.block_bytes(hlo.parse(program.as_text() or ""), _parts(cache), "verify")


def _parts(tree: Any) -> tuple[hlo.Shape, ...]:
    """What one device holds of arrays that are described."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.number)]
    return tuple(hlo.Shape(_dtype(x.dtype), tuple(x.sharding.shard_shape(x.shape))) for x in leaves)


def _dtype(dtype: Any) -> str:
    """A dtype as the compiler's text has it.

    >>> [_dtype(name) for name in ("bfloat16", "float32", "int32", "uint8")]
    ['bf16', 'f32', 's32', 'u8']
    """
    name = jnp.dtype(dtype).name
    for long, short in (("uint", "u"), ("int", "s"), ("float", "f")):
        name = name.replace(long, short)
    return name


def _slice(setup: Setup) -> str:
    if not isinstance(setup.topology, str):
        raise ValueError("topology: only TPUs can be compiled for; give one such as v5e:4x4")
    return setup.topology


def _matrices(arrays: Iterable[hlo.Shape]) -> list[hlo.Shape]:
    return [shape for shape in arrays if len(shape.sizes) > 1]


def _bytes(arrays: Iterable[hlo.Shape]) -> int:
    return sum(shape.bytes for shape in arrays)


def _names(found: Iterable[hlo.Instruction]) -> tuple[str, ...]:
    return tuple(map(str, found))


def _out_of_memory(error: Exception, weights: int) -> tuple[float, float]:
    """Bytes required and available, as the compiler's refusal says.

    Raises:
        JaxRuntimeError: that error, where it is another.
    """
    text = str(error)
    if found := _USED.search(text):
        required, available = _size(*found.groups()[:2]), _size(*found.groups()[2:])
    elif found := _TEMPORARIES.search(text):
        required, available = _size(*found.groups()[:2]), _size(*found.groups()[2:])
        required += weights
    else:
        raise error
    return required, available


def _size(number: str, unit: str) -> float:
    """Bytes.

    >>> _size("15.75", "G") / 2**30
    15.75
    """
    return math.floor(float(number) * _UNITS[unit])
