"""How weights lie on a mesh: one table from logical axes to mesh axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

RULES: Mapping[str, str | None] = {
    "vocab": "model",
    "kv_heads": "model",
    "mlp": "model",
    "experts": None,
}
"""The mesh axis that each logical axis of a weight is cut along; None leaves it whole."""


def sharding(
    mesh: Mesh,
    axes: Sequence[str | None],
    units: Mapping[str, int],
    rules: Mapping[str, str | None] = RULES,
) -> NamedSharding:
    """Lay an array with these logical axes over a mesh.

    ``units`` is in how many equal pieces a logical axis may be cut at most; where the mesh axis
    does not divide them, every device holds the whole.

    >>> import jax
    >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> tuple(sharding(mesh, (None, "mlp"), {"mlp": 64}).spec)
    (None, 'model')
    """

    def along(axis: str | None) -> str | None:
        name = None if axis is None else rules[axis]
        if axis is None or name not in mesh.shape:
            return None
        return name if units[axis] % mesh.shape[name] == 0 else None

    return NamedSharding(mesh, PartitionSpec(*(along(axis) for axis in axes)))
