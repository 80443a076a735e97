"""Reading is lazy and sharded: no device and no buffer ever gets more than it needs."""

import io
import os
import shutil
import subprocess
import sys

import jax.numpy as jnp
import pytest
from random_folder import write_random_folder

import specjax

ON_EIGHT_DEVICES = """
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
from specjax.io.safetensors import SafetensorsCheckpoint
from specjax.models import assemble, describe, weight_sharding
from specjax.sharding import RULES, Layout, make_mesh
from specjax.models.layers import parameters, unpack


class Recording(SafetensorsCheckpoint):
    def __init__(self, folder):
        super().__init__(folder)
        self.sizes = {name: [] for name in self.names()}

    def read(self, name, index=()):
        values = super().read(name, index)
        self.sizes[name].append(values.size)
        return values


layout = Layout(make_mesh(1, 8), RULES)
for folder in sys.argv[1:]:
    checkpoint = Recording(Path(folder))
    table = describe(checkpoint.config)
    plain = unpack(assemble(table, SafetensorsCheckpoint(folder)))
    shardings = partial(weight_sharding, table.config, layout)
    leaves = unpack(assemble(table, checkpoint, shardings=shardings))
    for path, leaf in leaves.items():
        assert len(leaf.addressable_shards) == 8
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, plain[path][shard.index])
    # Every element once: what eight devices share is read for all of them together.
    whole = {name: int(np.prod(checkpoint.shape(name))) for name in checkpoint.names()}
    assert {name: sum(sizes) for name, sizes in checkpoint.sizes.items()} == whole
    # And no more at a time than one device holds.
    for path, parameter in parameters(table.config).items():
        held = int(np.prod(leaves[path].sharding.shard_shape(parameter.shape)))
        num = parameter.shape[-1] if path.endswith("kernel") else parameter.shape[0]
        for rows in table.rows(path, num):
            assert max(checkpoint.sizes[rows.tensor]) <= held, path
    cut = [path for path, leaf in leaves.items() if not leaf.sharding.is_fully_replicated]
    print(len(cut), len(leaves))
"""

PEAK = """
import sys, threading, time

def held():
    # Pages of the mapped file are the system's to drop, and are not counted.
    status = open("/proc/self/status").read()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024

class Peak(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.running = 0, True
        self.start()

    def run(self):
        while self.running:
            self.most = max(self.most, held())
            time.sleep(0.002)

    def stop(self):
        self.running = False
        self.join()
        return max(self.most, held())

import jax, jax.numpy as jnp, specjax
source, warm, folder, shard = sys.argv[1:]
# What the libraries allocate once is not of the weights.
specjax.save(specjax.load(warm, dtype=jnp.bfloat16), warm + "-saved")
before, peak = held(), Peak()
target = specjax.load(source, dtype=jnp.bfloat16)
most = peak.stop()
weights = sum(leaf.nbytes for leaf in jax.tree.leaves(target.weights))
print(most - before - weights, weights)
before, peak = held(), Peak()
specjax.save(target, folder, max_shard_bytes=int(shard))
print(peak.stop() - before)
"""


def run(program, *args, devices=1):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", program, *map(str, args)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_slice_is_read_once_and_for_whom_it_is_for(tmp_path):
    cut, uncut = tmp_path / "cut", tmp_path / "uncut"
    write_random_folder(cut, tie_word_embeddings=True)
    # Eight devices cannot share four key heads; the rest is cut all the same.
    write_random_folder(uncut, num_key_value_heads=4)
    counts = [line.split() for line in run(ON_EIGHT_DEVICES, cut, uncut, devices=8).splitlines()]
    assert counts == [["11", "16"], ["8", "17"]]


def require_small_peaks(tmp_path, **sizes):
    """Load float32 as bfloat16 and save that; compare what was held beside the weights."""
    write_random_folder(tmp_path / "warm", hidden_size=64)
    total, largest = write_random_folder(tmp_path / "source", tensors_a_shard=9, **sizes)
    folders = [tmp_path / name for name in ("source", "warm", "saved")]
    loading, weights, saving = map(int, run(PEAK, *folders, largest).split())
    mib, num = 2**20, len([*(tmp_path / "saved").glob("*.safetensors")])
    print(
        f"\n{total / mib:.0f} MiB of float32, largest tensor {largest / mib:.1f} MiB. "
        f"Loaded as {weights / mib:.0f} MiB: at most {loading / mib:.1f} MiB more. "
        f"Saved in {num} shards: at most {saving / mib:.1f} MiB more."
    )
    assert weights == total / 2
    assert num >= weights // largest
    assert loading < 2 * largest
    assert saving < 3 * largest  # a shard, and a tensor for it


def test_loading_and_saving_hold_little_more_than_the_weights(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 8192}
    require_small_peaks(tmp_path, num_hidden_layers=4, **sizes)


@pytest.mark.slow
def test_loading_and_saving_two_gib_hold_little_more_than_the_weights(tmp_path):
    if (free := shutil.disk_usage(tmp_path).free) < 5e9:
        pytest.skip(f"needs 5 GB of disk at {tmp_path}, {free / 1e9:.1f} GB are free")
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000}
    try:
        require_small_peaks(tmp_path, num_hidden_layers=9, **sizes)
    finally:
        for name in ("source", "saved"):  # pytest would keep them for three runs
            shutil.rmtree(tmp_path / name)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("form", ["safetensors", "orbax"])
def test_progress_is_shown_on_a_terminal_only(tmp_path, monkeypatch, form):
    write_random_folder(tmp_path / "source")
    target = specjax.load(tmp_path / "source")
    specjax.save(target, tmp_path / "saved", format=form)
    for stream, shown in [(Terminal(), True), (io.StringIO(), False)]:
        monkeypatch.setattr(sys, "stderr", stream)
        specjax.load(tmp_path / "saved", dtype=jnp.float32)
        assert ("weights:" in stream.getvalue()) == shown
        assert ("/17" in stream.getvalue()) == shown
        assert shown or not stream.getvalue()
