"""Key heads that weights and cache hold several times: the model computes what it did."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from mesh_cells import config, random_model
from random_folder import write_random_folder

import specjax
from specjax.io.safetensors import SafetensorsCheckpoint
from specjax.models import LayerKind, assemble, describe, quantize, sharded, weight_sharding
from specjax.models.kv_copies import is_copied, with_copies, without_copies
from specjax.models.layers import pack, parameters, unpack
from specjax.models.rope import Rope
from specjax.sharding import RULES, Layout, make_mesh

# Four query heads for two key heads, of two channels each.
SMALL = config(2, num_heads=4, head_dim=2, hidden_size=3)
COPIED = dataclasses.replace(SMALL, kv_copies=2)
QKV = "layers.0.qkv.kernel"


def test_each_copy_takes_its_share_of_the_query_heads():
    # By key head: its query heads, its key, its value.
    published = ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]
    copied = ["q0", "k0", "v0", "q1", "k0", "v0", "q2", "k1", "v1", "q3", "k1", "v1"]
    channels = [10 * published.index(head) + d for head in published for d in (0, 1)]
    kernel = jnp.asarray([channels] * 3, jnp.float32)
    expected = [10 * published.index(head) + d for head in copied for d in (0, 1)]
    assert with_copies(COPIED, QKV, kernel).tolist() == [expected] * 3
    assert with_copies(COPIED, "layers.0.qkv.bias", kernel[0]).tolist() == expected
    assert with_copies(COPIED, "layers.0.qkv.weight", kernel.T).T.tolist() == [expected] * 3
    assert with_copies(COPIED, "layers.0.qkv.scale", kernel[0]).tolist() == expected
    assert without_copies(COPIED, QKV, with_copies(COPIED, QKV, kernel)).tolist() == [channels] * 3


def test_norms_over_all_heads_are_copied_with_their_keys():
    scale = jnp.asarray([0.0, 1.0, 10.0, 11.0])
    both = dataclasses.replace(COPIED, head_norm="all")
    copied = with_copies(both, "layers.0.key_norm.scale", scale)
    assert copied.tolist() == [0.0, 1.0, 0.0, 1.0, 10.0, 11.0, 10.0, 11.0]
    assert without_copies(both, "layers.0.key_norm.scale", copied).tolist() == scale.tolist()
    for path in ("layers.0.query_norm.scale", "layers.0.output.kernel", "embedding"):
        assert not is_copied(both, path)
    assert not is_copied(dataclasses.replace(COPIED, head_norm="each"), "layers.0.key_norm.scale")
    assert not is_copied(SMALL, QKV)


@pytest.mark.parametrize("heads", [(4, 2, 2), (8, 2, 4), (8, 1, 8), (12, 4, 3), (64, 8, 2)])
def test_the_inverse_gives_back_every_weight(heads):
    num_heads, num_kv_heads, copies = heads
    shape = config(num_kv_heads, num_heads=num_heads, head_dim=2, hidden_size=2)
    copied = dataclasses.replace(shape, kv_copies=copies)
    for path, one in parameters(shape).items():
        leaf = jnp.arange(np.prod(one.shape), dtype=jnp.int32).reshape(one.shape)
        held = with_copies(copied, path, leaf)
        assert held.shape == parameters(copied)[path].shape
        assert (without_copies(copied, path, held) == leaf).all()


class Devices(Layout):
    """As much of a layout as decides on copies, of more devices than are at hand."""

    def __init__(self, num, lanes=1):
        object.__setattr__(self, "num", num)
        object.__setattr__(self, "least", lanes)

    @property
    def lanes(self):
        return self.least

    def size(self, axis):
        return self.num


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "devices", "copies"),
    [
        (64, 8, 16, 2),  # Llama 3.1 70B on 16 devices
        (64, 8, 8, 1),
        (64, 8, 4, 1),
        (32, 8, 32, 4),
        (9, 3, 8, 1),  # SmolLM2 135M: nothing fits, so attention is whole
        (9, 3, 9, 3),
        (8, 1, 8, 8),
        (32, 4, 8, 2),
        (12, 2, 4, 2),
        (12, 4, 6, 3),
        (8, 8, 16, 1),  # there are no query heads to share out
    ],
)
def test_the_fewest_copies_that_give_every_device_key_heads(
    num_heads, num_kv_heads, devices, copies
):
    shape = config(num_kv_heads, num_heads=num_heads)
    assert sharded(shape, Devices(devices)).kv_copies == copies


@pytest.mark.parametrize(
    ("head_dim", "devices", "copies"),
    [
        (64, 16, 4),  # Llama 3.2 1B: two heads of 64 fill the lanes that one would take anyway
        (128, 16, 2),
        (64, 8, 2),
        (64, 1, 1),
        (8, 16, 2),  # no number of copies fills them
    ],
)
def test_on_a_tpu_a_device_has_no_fewer_channels_than_lanes(head_dim, devices, copies):
    shape = config(8, num_heads=32, head_dim=head_dim)
    assert sharded(shape, Devices(devices, lanes=128)).kv_copies == copies


def test_attention_that_cannot_be_cut_is_whole_on_every_device():
    layout = Layout(make_mesh(1, 8), RULES)
    shape = sharded(config(3, num_heads=9), layout)
    held = {path: weight_sharding(shape, layout, one) for path, one in parameters(shape).items()}
    assert held[QKV].is_fully_replicated
    assert held["layers.0.output.kernel"].is_fully_replicated
    assert held["layers.0.up.kernel"].spec == PartitionSpec(None, "model")
    assert held["layers.0.down.kernel"].spec == PartitionSpec("model", None)
    assert held["head.kernel"].spec == PartitionSpec(None, "model")


def randomised(lm):
    """Norms and biases too, which are one and zero where nothing was learnt."""
    rng = np.random.default_rng(1)
    noise = partial(rng.normal, scale=0.3)
    weights = jax.tree.map(lambda x: x + noise(size=x.shape).astype(np.float32), lm.weights)
    return dataclasses.replace(lm, weights=weights)


def copied(lm, copies):
    """The model with copies, on one device."""
    shape = dataclasses.replace(lm.config, kv_copies=copies)
    leaves = {path: with_copies(shape, path, x) for path, x in unpack(lm.weights).items()}
    return dataclasses.replace(lm, weights=pack(leaves), config=shape)


@jax.jit
def logits(lm):
    tokens = jnp.asarray([[1, 2, 3, 4, 5], [9, 8, 7, 6, 0]], jnp.int32)
    start = jnp.zeros(2, jnp.int32)
    cache = lm.init_cache(2, 8)
    return lm.unembed(lm.extend(tokens, start, cache, count=start + 5)[0])


@pytest.mark.parametrize(
    ("head_norm", "biased", "int8"),
    [("each", True, False), ("all", False, False), ("all", True, True)],
)
def test_logits_are_what_they_were(head_norm, biased, int8):
    sizes = {"hidden_size": 32, "head_dim": 8, "head_norm": head_norm}
    shape = config(2, LayerKind(Rope(8)), qkv_bias=biased, output_bias=biased, **sizes)
    one = randomised(random_model(shape))
    one = quantize(one) if int8 else one
    np.testing.assert_allclose(logits(copied(one, 4)), logits(one), rtol=0, atol=2e-5)


class Recording(SafetensorsCheckpoint):
    """Notes how many numbers of each tensor were read, in how many goes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.sizes = {}

    def read(self, name, index=()):
        values = super().read(name, index)
        self.sizes.setdefault(name, []).append(values.size)
        return values


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_loading_makes_the_copies_and_each_device_reads_its_own_part(tmp_path, quantized):
    folder = tmp_path / "model"
    write_random_folder(folder, num_key_value_heads=2, num_hidden_layers=1)
    mesh, checkpoint = make_mesh(1, 8), Recording(folder)
    layout, table = Layout(mesh, RULES), describe(checkpoint.config)
    table = dataclasses.replace(table, config=sharded(table.config, layout))
    assert table.config.kv_copies == 4
    weights = assemble(
        table,
        checkpoint,
        shardings=partial(weight_sharding, table.config, layout),
        quantized=quantized,
    )
    one = specjax.load(folder, quantize="int8" if quantized else None)
    expected = specjax.shard(one, mesh)
    for (path, ours), theirs in zip(
        unpack(weights).items(), unpack(expected.weights).values(), strict=True
    ):
        assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim), path
        np.testing.assert_array_equal(ours, theirs, err_msg=path)
    # 16 query and 2 key heads of 2 channels: a device holds 2 query heads and a copy of one key.
    name = "model.layers.0.self_attn.{}_proj.weight"
    assert checkpoint.sizes[name.format("q")] == [2 * 2 * 32] * 8
    assert checkpoint.sizes[name.format("k")] == [1 * 2 * 32] * 8
    assert checkpoint.sizes[name.format("v")] == [1 * 2 * 32] * 8


def test_a_loaded_model_knows_its_mesh(tmp_path):
    folder = tmp_path / "model"
    write_random_folder(folder, num_key_value_heads=2, num_hidden_layers=1)
    mesh = make_mesh(2, 4)
    target = specjax.load(folder, mesh=mesh)
    assert target.layout == Layout(mesh, RULES)
    assert target.config.kv_copies == 2
    np.testing.assert_allclose(logits(target), logits(specjax.load(folder)), rtol=0, atol=1e-5)
