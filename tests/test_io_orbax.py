"""Orbax: any mesh to any other, bit for bit, and what does not fit is named."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_folder import write_random_folder
from tiny_folder import write_tiny_folder

import specjax
from specjax.io.orbax import save_leaves
from specjax.models.layers import unpack

ON_EIGHT_DEVICES = """
import sys
from functools import partial

import jax
import numpy as np
import specjax
from specjax.models import describe, weight_sharding
from specjax.models.kv_copies import with_copies
from specjax.models.layers import parameters, unpack
from specjax.sharding import RULES, Layout, make_mesh

source, folder = sys.argv[1:]
plain = unpack(specjax.load(source).weights)


mesh_of = make_mesh


def held(target, path):
    return with_copies(target.config, path, plain[path])


def check(target, mesh):
    leaves = unpack(target.weights)
    assert leaves.keys() == plain.keys()
    for path, parameter in parameters(target.config).items():
        wanted = weight_sharding(target.config, Layout(mesh, RULES), parameter)
        assert leaves[path].sharding.is_equivalent_to(wanted, len(parameter.shape)), path
        for shard in leaves[path].addressable_shards:
            np.testing.assert_array_equal(shard.data, held(target, path)[shard.index])
    return {x.sharding.shard_shape(x.shape) for x in leaves.values()}


sharded = specjax.load(source, mesh=mesh_of(2, 4))
check(sharded, mesh_of(2, 4))
assert sharded.config.kv_copies == 2
specjax.save(sharded, folder, format="orbax")
meshes = [mesh_of(*x) for x in [(8, 1), (2, 4), (1, 8)]]
shapes = [check(specjax.load(folder, mesh=mesh), mesh) for mesh in meshes]
assert shapes[0] != shapes[2]
one = specjax.load(folder)
for path, leaf in unpack(one.weights).items():
    assert len(leaf.devices()) == 1
    np.testing.assert_array_equal(leaf, plain[path])
# Eight bits stay so, and those made on reading are the same ones.
small = unpack(specjax.load(source, quantize="int8").weights)
eight_bits = specjax.load(source, quantize="int8", mesh=mesh_of(2, 4))
specjax.save(eight_bits, folder + "-8", format="orbax")
for name, options in [(folder + "-8", {}), (folder, {"quantize": "int8"})]:
    eight = specjax.load(name, mesh=mesh_of(1, 8), **options)
    leaves = unpack(eight.weights)
    assert eight.config.kv_copies == 4
    assert leaves.keys() == small.keys() != plain.keys()
    for path, leaf in leaves.items():
        assert leaf.dtype == small[path].dtype
        whole = with_copies(eight.config, path, small[path])
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[shard.index])
    assert leaves["layers.0.up.weight"].sharding.shard_shape((48, 32)) == (6, 32)
    assert leaves["layers.0.down.weight"].sharding.shard_shape((32, 48)) == (32, 6)
specjax.save(sharded, folder + "-hub")
for path, leaf in unpack(specjax.load(folder + "-hub").weights).items():
    np.testing.assert_array_equal(leaf, plain[path])
print("done")
"""


def test_saved_on_one_mesh_and_restored_on_others(tmp_path):
    source = tmp_path / "source"
    write_random_folder(source, num_key_value_heads=2)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            ON_EIGHT_DEVICES,
            str(source),
            str(tmp_path / "saved"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "source")


@pytest.fixture(scope="module")
def saved(source):
    """The same model in Orbax's form; copy it before changing anything."""
    specjax.save(specjax.load(source), source.with_name("saved"), format="orbax")
    return source.with_name("saved")


def test_all_comes_back(source, saved):
    before, after = specjax.load(source), specjax.load(saved)
    assert after.config == before.config
    assert after.tokenizer == before.tokenizer
    jax.tree.map(np.testing.assert_array_equal, after.weights, before.weights)
    assert sorted(x.name for x in saved.iterdir()) == [
        *("config.json", "generation_config.json", "orbax"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]


def test_weights_are_cast_as_they_are_read(source, saved):
    before, after = (specjax.load(x, dtype=jnp.bfloat16) for x in (source, saved))
    for leaf in jax.tree.leaves(after.weights):
        assert leaf.dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, after.weights, before.weights)


def test_eight_bits_stay_eight_bits(source, tmp_path):
    before = specjax.load(source, dtype=jnp.bfloat16, quantize="int8")
    specjax.save(before, tmp_path / "saved", format="orbax")
    for options in ({}, {"quantize": "int8"}):
        after = specjax.load(tmp_path / "saved", dtype=jnp.bfloat16, **options)
        for one, other in zip(*map(jax.tree.leaves, (after.weights, before.weights)), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert after.weights.head.weight.dtype == jnp.int8
    assert after.weights.head.scale.dtype == jnp.float32
    assert after.weights.norm.scale.dtype == jnp.bfloat16


@pytest.mark.parametrize("part", ["weight", "scale"])
def test_half_of_a_kernel_in_eight_bits_is_missed(source, tmp_path, part):
    shutil.copytree(source, tmp_path / "copy")
    leaves = unpack(specjax.load(source, quantize="int8").weights)
    del leaves[f"layers.0.up.{part}"]
    save_leaves(leaves, tmp_path / "copy")
    with pytest.raises(ValueError, match=rf"'layers\.0\.up\.{part}' of shape .* is missing"):
        specjax.load(tmp_path / "copy")


def test_what_was_restored_can_be_saved_again(source, saved, tmp_path):
    specjax.save(specjax.load(saved), tmp_path / "again")
    before, after = specjax.load(source), specjax.load(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, after.weights, before.weights)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"num_hidden_layers": 2},
            r"'layers\.1\.qkv\.kernel' of shape \(16, 32\) is missing.*more",
        ),
        ({"tie_word_embeddings": False}, r"'embedding' of shape \(257, 16\) is missing$"),
        (
            {"intermediate_size": 25},
            r"'layers\.0\.up\.kernel' has shape \(16, 24\), wanted is \(16, 25\)",
        ),
        (
            {"qk_norm": 1, "architectures": ["OlmoForCausalLM"]},
            "'OlmoForCausalLM' is not supported",
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_named(saved, tmp_path, changes, named):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=named):
        specjax.load(folder)


def test_a_weight_without_a_place_is_named(source, tmp_path):
    model = specjax.load(source)
    specjax.save(model, tmp_path / "saved", format="orbax")
    shutil.rmtree(tmp_path / "saved" / "orbax")
    save_leaves(unpack(model.weights) | {"layers.0.gate.bias": jnp.zeros(24)}, tmp_path / "saved")
    with pytest.raises(ValueError, match=r"'layers\.0\.gate\.bias' of shape \(24,\) has no place"):
        specjax.load(tmp_path / "saved")


def test_a_folder_that_lost_a_file_is_refused_by_name(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "orbax" / "_METADATA").unlink()
    with pytest.raises(ValueError, match=f"{folder / 'orbax'} is incomplete or corrupt"):
        specjax.load(folder)
