"""TPU slices to compile for: libtpu has their compiler, and needs none of them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from specjax.plan.chips import Machine, find_machine
from specjax.sharding import make_mesh

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server is asked which TPU this is
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any: what is compiled for is named each time
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile, beside one that runs
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
"""What a process that only compiles wants of jax and libtpu."""


def prepare_environment(topology: str) -> None:
    """Make this process one that compiles for TPUs and uses none, the machine's own included.

    Call it before jax computes anything, and not where a TPU is to be used later. What the user
    has set stays as it is. Without it compiling works too, after warnings and a wait for TPUs.

    Raises:
        ValueError: there is no such topology, or libtpu is missing.
    """
    _tpu(topology)
    given = "JAX_PLATFORMS" in os.environ
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not given:  # jax has read the variable when it was imported
        jax.config.update("jax_platforms", ENVIRONMENT["JAX_PLATFORMS"])


def devices(topology: str) -> list[Any]:
    """The devices of a slice such as "v5e:4x4", to lower and compile for.

    Raises:
        ValueError: there is no such topology, or libtpu is missing.
    """
    machine = _tpu(topology)
    name, shape = machine.chip.name.removeprefix("TPU "), "x".join(map(str, machine.shape))
    # Two cores of a v4 or v5p act as one device; the other chips have one.
    kind = "megacore" if name in ("v4", "v5p") else "default"
    try:
        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{name}:{shape}",
            chip_config_name=kind,
            chips_per_host_bounds=[*(min(side, 2) for side in machine.shape[:2]), 1],
        )
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology: libtpu has no {topology} ({error}); {_FORMS}") from None
    return list(described.devices)


def mesh(topology: str, shape: tuple[int, int]) -> Mesh:
    """The devices of a slice along (data, model)."""
    return make_mesh(*shape, devices=devices(topology))


_FORMS = (
    "write the chip and the sides of the slice: v4:2x2x1, v5e:4x4, v5p:2x2x2, v6e:2x4, each "
    "side even or 1"
)


def _tpu(topology: str) -> Machine:
    """Check that the topology is one of TPUs and that there is a compiler for it."""
    machine = find_machine(topology)
    num_sides = (2,) if topology.lower().startswith(("v5e", "v6e")) else (2, 3)
    if not machine.is_tpu or len(machine.shape) not in num_sides:
        raise ValueError(f"topology: {topology!r} is no TPU slice to compile for; {_FORMS}")
    if find_spec("libtpu") is None:
        raise ValueError('topology: compiling for a TPU needs libtpu; pip install "specjax[plan]"')
    return machine
