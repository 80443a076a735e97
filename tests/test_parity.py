"""Logits equal those of transformers on the same weights."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import DecoderLM, assemble, describe

torch = pytest.importorskip("torch")
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

TOLERANCE = 1e-4


class StateDict:
    """A transformers model as a checkpoint."""

    def __init__(self, model):
        self.tensors = {name: x.numpy() for name, x in model.state_dict().items()}

    def names(self):
        return self.tensors

    def shape(self, name):
        return self.tensors[name].shape

    def read(self, name, index=()):
        return self.tensors[name][index]


def peer(**changes):
    """A small llama of transformers with random weights, norms included."""
    fields: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    } | changes
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**fields)).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim > 1 else 1.0
            parameter.copy_(torch.randn_like(parameter) * scale)
    return model


def ours(model, config=None):
    config = config or model.config.to_dict()
    table = describe(config | {"architectures": [type(model).__name__]})
    return DecoderLM(assemble(table, StateDict(model)), table.config)


@jax.jit
def run(target, tokens, start, count):
    cache = target.init_cache(*tokens.shape)
    hidden, _, _ = target.extend(tokens, start, cache, count=count)
    return target.unembed(hidden)


def logits(target, tokens):
    tokens = jnp.asarray(tokens, jnp.int32)
    rows, length = tokens.shape
    start, count = jnp.zeros(rows, jnp.int32), jnp.full(rows, length, jnp.int32)
    with jax.default_matmul_precision("highest"):
        return np.asarray(run(target, tokens, start, count))


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": YARN,
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [1.0, 3.0, 9.0, 20.0],
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "no sharing": {"num_key_value_heads": 6},
    "head_dim": {"head_dim": 16},
    "biases": {"attention_bias": True, "mlp_bias": True},
}
CASES = {
    name: {"rope_parameters": rope and {"rope_theta": 500.0} | rope} for name, rope in ROPES.items()
}


@pytest.mark.parametrize("changes", (CASES | VARIANTS).values(), ids=(CASES | VARIANTS).keys())
def test_logits_equal_those_of_transformers(changes):
    model = peer(**changes)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (2, 40))
    np.testing.assert_allclose(
        logits(ours(model), tokens), theirs(model, tokens), atol=TOLERANCE, rtol=0
    )


def test_older_configurations_name_rope_otherwise():
    model = peer(rope_parameters={"rope_theta": 500.0} | YARN)
    older = model.config.to_dict()
    rope = older.pop("rope_parameters")
    older["rope_theta"] = rope.pop("rope_theta")
    older["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    tokens = [[3, 1, 4, 1, 5]]
    np.testing.assert_array_equal(logits(ours(model, older), tokens), logits(ours(model), tokens))


@pytest.mark.slow
def test_logits_of_smollm2_equal_those_of_transformers():
    from specjax.io.load import from_checkpoint, open_checkpoint

    checkpoint = open_checkpoint("smollm2-135m-instruct")
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    tensors = {name: torch.tensor(checkpoint.read(name)) for name in checkpoint.names()}
    tied = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    model.load_state_dict(tied | tensors)
    target = from_checkpoint(checkpoint)
    assert target.tokenizer is not None
    text = (Path(__file__).parents[1] / "LICENSE").read_text()
    tokens = np.array([target.tokenizer.encode(text)[:200]])
    np.testing.assert_allclose(logits(target, tokens), theirs(model, tokens), atol=1e-3, rtol=0)
