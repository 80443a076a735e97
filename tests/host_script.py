"""What a host of test_distributed.py runs: it shares arrays and then ends as its mode says."""

import argparse
import json
import os
import signal

import jax
import numpy as np

from specjax import distributed
from specjax.sharding import make_mesh

HEARTBEAT = 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["share", "raise", "die"])
    parser.add_argument("--victim", type=int, default=1)
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    args = parser.parse_args()
    joining = (args.coordinator, args.num_processes, args.process_id)
    with distributed.job(*joining, heartbeat_seconds=HEARTBEAT, join_seconds=60):
        if args.mode == "share":
            print(json.dumps(shared()))
        else:
            end(args)


def shared():
    """Everything that hosts tell each other, where host h has h + 1 rows."""
    host = jax.process_index()
    rows, mine = distributed.share([[host] * (3 * i + host) for i in range(host + 1)])
    meshes = {"data": make_mesh(8, 1), "model": make_mesh(1, 8)}
    back = {}
    for name, mesh in meshes.items():
        num = 4 if name == "data" else 8  # no host has rows to itself where all share them
        own = np.arange(num, dtype=np.float32) + 10 * host * (name == "data")
        whole = distributed.to_global(mesh, own)
        back[name] = [
            list(whole.shape),
            float(jax.jit(lambda x: x.sum())(whole)),
            distributed.to_local(mesh, whole).tolist(),
        ]
    return {
        "rows": rows,
        "mine": [mine.start, mine.stop],
        "to_read": [list(range(7))[distributed.host_rows(7)]],
        "first": distributed.from_first(np.full(2, host, np.int32)).tolist(),
        "seeds": distributed.agree_on_seeds(None, 3),
        "back": back,
    }


def end(args):
    """End host ``victim`` while the others wait for it in a program."""
    step = 0
    while True:
        distributed.share([[step]])
        step += 1
        if step == 3 and jax.process_index() == args.victim:
            if args.mode == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("prompts: is bad;\nfix it")


if __name__ == "__main__":
    main()
