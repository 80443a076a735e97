"""Loading: every tensor in its place, or an error that names it."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_tensors import tensors_of

from specjax.models import Config, LayerKind, assemble, describe, family, llama, random_weights
from specjax.models.rope import Rope

CONFIG = Config(
    vocab_size=13,
    hidden_size=12,
    intermediate_size=10,
    num_heads=6,
    num_kv_heads=2,
    head_dim=4,
    layers=(LayerKind(Rope(4)),) * 2,
    tied=True,
)


UNTIED = dataclasses.replace(CONFIG, tied=False, qkv_bias=True, output_bias=True, mlp_bias=True)


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
def test_every_tensor_is_read_exactly_once(config):
    table = llama.weight_table(config)
    tensors = tensors_of(table)
    weights = assemble(table, tensors)
    assert tensors.readings == {name: x.size for name, x in tensors.items()}
    found = {float(x) for leaf in jax.tree.leaves(weights) for x in np.unique(leaf)}
    assert found == set(range(len(tensors)))
    expected = random_weights(config, jax.random.key(0))
    assert jax.tree.map(jnp.shape, weights) == jax.tree.map(jnp.shape, expected)


def test_harmless_tensors_are_ignored():
    table = llama.weight_table(CONFIG)
    tensors = tensors_of(table)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assemble(table, tensors)
    assert "lm_head.weight" not in tensors.readings


def test_an_unsupported_architecture_is_named():
    with pytest.raises(ValueError, match="'MambaForCausalLM' is not .*LlamaForCausalLM"):
        family("MambaForCausalLM")


HF_CONFIG = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
}


def test_config_of_smollm2():
    config = llama.config_from_hf(HF_CONFIG)
    assert (config.head_dim, config.num_kv_heads, config.tied) == (64, 3, True)
    assert config.layers == (LayerKind(Rope(64, 100000.0)),) * 30
    assert config.max_length == 8192


def test_dynamic_scaling_lengthens_the_model():
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    assert llama.config_from_hf(HF_CONFIG | {"rope_scaling": scaling}).max_length == 16384


@pytest.mark.parametrize("name", ["vocab_size", "num_attention_heads"])
def test_a_configuration_that_lacks_a_field_is_refused(name):
    named = {"architectures": ["LlamaForCausalLM"], **HF_CONFIG}
    with pytest.raises(ValueError, match=f"lacks '{name}'"):
        describe({x: y for x, y in named.items() if x != name})


def test_another_activation_is_refused():
    with pytest.raises(ValueError, match="hidden_act 'xielu'"):
        llama.config_from_hf(HF_CONFIG | {"hidden_act": "xielu"})


def test_the_folder_is_no_package_of_its_own():
    with pytest.raises(ImportError, match=r"specjax\.models"):
        importlib.import_module("models")
