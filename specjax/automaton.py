"""A deterministic automaton over tokens in two arrays: classes of tokens, and where each leads."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int


@struct.dataclass
class Automaton:
    """Tokens that lead to the same place from every state share a class: V + S x C ints, not S x V.

    ``table[s, classes[t]]`` is the state after token t in state s, -1 where t is not allowed.
    Methods are for one state; map them over rows.

    Example:
        >>> machine = Automaton.from_rows(np.array([[1, -1, -1], [0, 1, 1]]))
        >>> machine.classes.tolist()
        [0, 1, 1]
        >>> int(machine.step(1, 2)), machine.allowed(0).tolist()
        (1, [True, False, False])
    """

    classes: Int[Array, " V"]
    table: Int[Array, "S C"]

    @classmethod
    def pack(cls, classes: np.ndarray, table: np.ndarray, *, least: int = 1) -> Automaton:
        """Put it on the device; states and classes are padded to a power of two from ``least`` on.

        Another automaton of about the same size is then no new shape, and no retrace.
        """
        num_states, num_classes = (bucket(n, least) for n in table.shape)
        padded = np.full((num_states, num_classes), -1, np.int32)
        padded[: table.shape[0], : table.shape[1]] = table
        return cls(jnp.asarray(classes, jnp.int32), jnp.asarray(padded))

    @classmethod
    def from_rows(cls, rows: Iterable[Int[np.ndarray, " V"]], *, least: int = 1) -> Automaton:
        """Build from the next state of every token, one row a state in order.

        Only one row is held at a time. Classes are split where a row tells their tokens apart, so
        the result is exact.

        Raises:
            ValueError: there are no rows.
        """
        classes, table = None, np.zeros((0, 1), np.int32)
        for row in rows:
            row = np.asarray(row, np.int32)
            classes = np.zeros(row.size, np.int64) if classes is None else classes
            classes, old = split(classes, row)
            table = np.concatenate([table[:, old], row[_members(classes, old.size)][None]])
        if classes is None:
            raise ValueError("rows: an automaton needs at least one state")
        return cls.pack(classes, table, least=least)

    def step(self, state: Int[Array, ""] | int, token: Int[Array, ""] | int) -> Int[Array, ""]:
        """The state after ``token``, -1 where it is not allowed."""
        return self.table[state, self.classes[token]]

    def allowed(self, state: Int[Array, ""] | int) -> Bool[Array, " V"]:
        """Which tokens may come next."""
        return (self.table[state] >= 0)[self.classes]


def bucket(num: int, least: int = 1) -> int:
    """The smallest power of two times ``least`` that holds ``num``.

    >>> [bucket(n, 8) for n in (0, 8, 9, 33)]
    [8, 8, 16, 64]
    """
    size = least
    while size < num:
        size *= 2
    return size


def split(classes: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split classes until ``row`` is constant on each; also say which class each came from.

    Old classes keep their number, so what was known of them holds; only tokens that differ from
    the first of their class are sorted.
    """
    num = int(classes.max(initial=-1)) + 1
    differ = np.flatnonzero(row != row[_members(classes, num)][classes])
    # A class and a value in one number: 31 bits each.
    code = classes[differ] << 32 | (row[differ].astype(np.int64) + 1)
    codes, place = np.unique(code, return_inverse=True)
    classes = classes.copy()
    classes[differ] = num + place
    return classes, np.concatenate([np.arange(num), codes >> 32])


def _members(classes: np.ndarray, num: int) -> np.ndarray:
    """The first token of each class."""
    first = np.empty(num, np.int64)
    first[classes[::-1]] = np.arange(classes.size)[::-1]
    return first
