"""A checkpoint in memory that counts what is read of it."""

import re

import numpy as np
import pytest

from specjax.models import assemble


class Tensors(dict):
    """Tensors by name; ``readings`` counts the elements read of each."""

    def __init__(self, *args):
        super().__init__(*args)
        self.readings = dict.fromkeys(self, 0)

    def names(self):
        return self.keys()

    def shape(self, name):
        return self[name].shape

    def read(self, name, index=()):
        self.readings[name] = self.readings.get(name, 0) + self[name][index].size
        return self[name][index]


def tensors_of(table):
    """The tensors that a table wants, each holding another number."""
    shapes = enumerate(table.stored().items())
    return Tensors({name: np.full(x, i, np.float32) for i, (name, x) in shapes})


def assert_each_is_named_when_wrong(table):
    """Take away, reshape and rename every tensor in turn: the error names it, nothing is read."""
    tensors = tensors_of(table)
    for name in list(tensors):
        kept, quoted = tensors.pop(name), re.escape(name)
        with pytest.raises(ValueError, match=f"'{quoted}' of shape .* is missing"):
            assemble(table, tensors)
        tensors[name] = np.zeros((*kept.shape, 7))
        found, wanted = (re.escape(str(x)) for x in ((*kept.shape, 7), kept.shape))
        with pytest.raises(ValueError, match=f"'{quoted}' has shape {found}.* wants {wanted}"):
            assemble(table, tensors)
        tensors[name] = kept
        tensors[f"{name}.extra"] = kept
        with pytest.raises(ValueError, match=f"'{quoted}.extra' .* no place in the model"):
            assemble(table, tensors)
        del tensors[f"{name}.extra"]
    assert not any(tensors.readings.values())
