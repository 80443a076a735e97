"""Several processes on this machine in the part of hosts, each with virtual CPU devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 240
"""Seconds after which a process counts as hanging, if a test says nothing else."""


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def start(command, num_devices, **more):
    """Start one process; what it prints, to both streams, is read from its ``stdout``.

    ``more`` is added to its environment.
    """
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    flags += " --xla_cpu_parallel_codegen_split_count=1"  # compiles programs this small sooner
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)} | more
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def start_hosts(command, num_hosts=2, num_devices=4, **more):
    """Start a process for each host; each is told how to join the others."""
    port = free_port()
    common = ["--coordinator", f"localhost:{port}", "--num-processes", num_hosts, "--process-id"]
    return [start([*command, *common, host], num_devices, **more) for host in range(num_hosts)]


def wait(processes, patience=PATIENCE):
    """Exit status and output of each process, none of which may hang."""
    try:
        outputs = [process.communicate(timeout=patience)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]
