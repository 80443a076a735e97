"""A toy machine and toy models, small enough to cost by hand."""

from specjax.models import Config, LayerKind
from specjax.models.rope import Rope
from specjax.plan.chips import Chip, Machine
from specjax.plan.setup import Setup

GLOBAL = LayerKind(Rope(8))


def toy_config(**changes):
    """Two layers; 19,616 weights, of which 15,488 in layers and 2,048 in the head."""
    fields = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "layers": (GLOBAL, GLOBAL),
    }
    return Config(**{**fields, **changes})


def toy_machine(*shape, **figures):
    """A gigabyte and four billion operations a second, a megabyte of memory."""
    known = {"memory": 1e6, "bandwidth": 1e9, "operations": {"float32": 4e9}}
    return Machine(Chip("toy", **{**known, **figures}), shape or (1,))


def toy_setup(**changes):
    """One row of 100 tokens in float32, on one toy device."""
    fields = {
        "target": toy_config(),
        "topology": toy_machine(),
        "context": 100,
        "dtype": "float32",
        "chunk": 8,
    }
    return Setup(**{**fields, **changes})
