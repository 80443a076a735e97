"""The automaton in classes equals the dense table it was built from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.automaton import Automaton


def tables():
    rng = np.random.default_rng(0)
    few = rng.integers(-1, 300, (300, 7))[:, rng.integers(0, 7, 500)]
    yield "few classes, many states", few
    yield "every token its own class", rng.integers(-1, 12, (12, 200))
    yield "one state", np.array([[0, -1, 0]])
    yield "all alike", np.zeros((3, 9), int)
    late = np.full((70, 40), -1)
    late[np.arange(35), np.arange(35)] = 5  # each row splits one token off
    yield "split one by one", late


@pytest.mark.parametrize("dense", [t for _, t in tables()], ids=[n for n, _ in tables()])
def test_classes_equal_the_dense_table(dense):
    machine = Automaton.from_rows(iter(dense.astype(np.int32)))
    found = np.asarray(machine.table)[:, np.asarray(machine.classes)]
    np.testing.assert_array_equal(found[: len(dense)], dense)
    distinct = len(np.unique(dense, axis=1).T)
    assert np.asarray(machine.classes).max() + 1 == distinct, "a class was split without need"
    assert (found[len(dense) :] == -1).all(), "padding allows something"


def test_steps_and_masks_are_those_of_the_table():
    dense = next(tables())[1].astype(np.int32)
    machine = Automaton.from_rows(dense)
    states, tokens = jnp.arange(300, dtype=jnp.int32), jnp.arange(500, dtype=jnp.int32)
    step = jax.vmap(jax.vmap(machine.step, (None, 0)), (0, None))(states, tokens)
    np.testing.assert_array_equal(step, dense)
    np.testing.assert_array_equal(jax.vmap(machine.allowed)(states), dense >= 0)


def test_automata_of_about_one_size_have_one_shape():
    rng = np.random.default_rng(1)
    shapes = {
        Automaton.from_rows(rng.integers(-1, 2, (s, c), np.int32), least=32).table.shape
        for s, c in ((3, 9), (20, 30), (32, 32))
    }
    assert shapes == {(32, 32)}


def test_an_automaton_needs_a_state():
    with pytest.raises(ValueError, match="rows: an automaton needs at least one state"):
        Automaton.from_rows([])
