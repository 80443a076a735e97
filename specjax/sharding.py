"""How a model and its rows lie on a mesh: one table from logical axes to mesh axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from specjax.protocols import Cache

Rules = Mapping[str, str | None]

RULES: Rules = {
    "batch": "data",
    "vocab": "model",
    "kv_heads": "model",
    "mlp": "model",
    "experts": None,
}
"""The mesh axis that each logical axis is cut along; None leaves it whole.

Experts are cut within (``mlp``), so that all devices share the work of each. ``"experts": "model"``
gives every device whole experts instead.
"""

REPLICATED: Rules = {**dict.fromkeys(RULES), "batch": "data"}
"""A model whole on every device, such as a draft model too small to be worth the all-reduces."""


def make_mesh(
    data: int = 1, model: int | None = None, devices: Sequence[Any] | None = None
) -> Mesh:
    """Arrange devices as rows of ``data`` and columns of ``model``, all that there are if None.

    Raises:
        ValueError: there are not so many devices, or they do not divide.

    >>> dict(make_mesh(1, 1, jax.devices()[:1]).shape)
    {'data': 1, 'model': 1}
    """
    devices = jax.devices() if devices is None else devices
    if data < 1 or (model is None and len(devices) % data):
        raise ValueError(f"data: {data} does not divide {len(devices)} devices; give one that does")
    model = len(devices) // data if model is None else model
    if model < 1 or data * model > len(devices):
        raise ValueError(
            f"model: a mesh of {data} x {model} needs {data * model} devices, and there are "
            f"{len(devices)}"
        )
    return jax.make_mesh(
        (data, model),
        ("data", "model"),
        axis_types=(AxisType.Auto,) * 2,
        devices=devices[: data * model],
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and the table that says which of its axes a logical axis is cut along.

    >>> layout = Layout(make_mesh(1, 1, jax.devices()[:1]), RULES)
    >>> tuple(layout.sharding((None, "mlp"), {"mlp": 64}).spec)
    (None, 'model')

    Raises:
        ValueError: a rule is for no axis that there is, or no axis of the mesh has a rule.
    """

    mesh: Mesh
    rules: Any = dataclasses.field(default_factory=lambda: RULES)

    def __post_init__(self) -> None:
        given = dict(self.rules)
        if unknown := given.keys() - RULES.keys():
            raise ValueError(
                f"rules: there is no axis {sorted(unknown)}; the axes are {', '.join(RULES)}"
            )
        names = {name for axis, name in given.items() if axis != "batch" and name}
        if names and not names & set(self.mesh.axis_names):
            raise ValueError(
                f"mesh: its axes {self.mesh.axis_names} are none of those in the rules "
                f"({', '.join(sorted(map(str, names)))}); name them so, or give rules="
            )
        # jax.make_mesh makes axes that want a sharding in every type; here the compiler finds them.
        auto = (AxisType.Auto,) * len(self.mesh.axis_names)
        mesh = Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=auto)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "rules", tuple(sorted(given.items())))

    @property
    def lanes(self) -> int:
        """How many numbers the last axis of an array takes at least in a device's memory."""
        return 128 if self.mesh.devices.flat[0].platform == "tpu" else 1

    def size(self, axis: str) -> int:
        """Into how many pieces the rules cut a logical axis."""
        return self.mesh.shape.get(dict(self.rules).get(axis), 1)

    def sharding(self, axes: Sequence[str | None], units: Mapping[str, int]) -> NamedSharding:
        """Lay an array with these logical axes over the mesh.

        ``units`` is in how many equal pieces a logical axis may be cut at most; where the mesh
        axis does not divide them, every device holds the whole. Of two logical axes along the
        same mesh axis the first is cut.
        """
        rules, cut = dict(self.rules), []
        for axis in axes:
            name = None if axis is None else rules.get(axis)
            if axis is None or name is None or name not in self.mesh.shape or name in cut:
                cut.append(None)
            else:
                cut.append(name if units[axis] % self.mesh.shape[name] == 0 else None)
        return NamedSharding(self.mesh, PartitionSpec(*cut))

    def constrain(
        self, x: Shaped[Array, "..."], axes: Sequence[str | None], units: Mapping[str, int]
    ) -> Shaped[Array, "..."]:
        """Make the compiler lay ``x`` like this."""
        return jax.lax.with_sharding_constraint(x, self.sharding(axes, units))

    def rows(self, tree: Any) -> Any:
        """Cut every array [B, ...] between rows. Caches pass: a model lays out its own."""

        def cut(x):
            if isinstance(x, Cache):
                return x
            axes = ("batch", *[None] * (x.ndim - 1))
            return self.constrain(x, axes, {"batch": x.shape[0]})

        return jax.tree.map(cut, tree, is_leaf=lambda x: isinstance(x, Cache))

    def replicate(self, tree: Any) -> Any:
        """Give every device, and so every host, the whole of each array."""
        return jax.lax.with_sharding_constraint(tree, NamedSharding(self.mesh, PartitionSpec()))

    def put_whole(self, tree: Any) -> Any:
        """Bring what does not lie on the mesh yet onto every device of it."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        def put(x):
            held = getattr(x, "sharding", None)
            lies_there = held is not None and held.device_set == everywhere.device_set
            if lies_there or isinstance(x, jax.ShapeDtypeStruct):
                return x
            # Between hosts only what is on the host can be given to devices of others.
            return jax.device_put(np.asarray(x) if self.mesh.is_multi_process else x, everywhere)

        return jax.tree.map(put, tree)


def layout_of(target: Any) -> Layout | None:
    """How a target lies on several devices: as it says, or as its weights do; None on one."""
    said = getattr(target, "layout", None)
    if said is not None:
        return said
    for leaf in jax.tree.leaves(target):
        held = getattr(leaf, "sharding", None)
        mesh = held.mesh if isinstance(held, NamedSharding) else None
        if isinstance(mesh, Mesh) and mesh.size > 1:
            return Layout(mesh, REPLICATED)
    return None
