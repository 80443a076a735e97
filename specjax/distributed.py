"""Several hosts, one program: joining them, sharing what each has read, ending together.

Every process runs the same script and dispatches the same programs over the devices of all. So the
hosts must agree on every argument, and none can go on without the others. On one process each
function here does nothing more than hand its argument back.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Shaped

from specjax import rng
from specjax.request import bucket

AUTO = "auto"
"""The coordinator's address is what Cloud TPU, GKE, Slurm or Open MPI say it is."""

HEARTBEAT_SECONDS = 20
JOIN_SECONDS = 300
_POLL_SECONDS = 0.5
_FAILED = "specjax/failed"


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    join_seconds: int = JOIN_SECONDS,
) -> None:
    """Join the other hosts; call it before anything else asks JAX for devices.

    Args:
        coordinator: "auto" where a cluster tells (Cloud TPU, GKE, Slurm, Open MPI); "host:port" of
            process 0, the same everywhere, with the next two; None stays alone.
        num_processes: how many processes there are.
        process_id: the number of this one, from 0.
        heartbeat_seconds: a host not heard of for so long is dead, and the others end.
        join_seconds: how long to wait for all to join.

    Raises:
        ValueError: the three do not go together, or no cluster tells.
        RuntimeError: JAX has its devices already, or a host did not join in time.
    """
    numbers = (num_processes, process_id)
    if coordinator is None:
        if numbers != (None, None):
            raise ValueError(
                "coordinator: is missing; give host:port of process 0, or 'auto', with "
                "num_processes and process_id"
            )
        return
    if coordinator != AUTO and None in numbers:
        raise ValueError(
            f"coordinator: {coordinator!r} goes with num_processes and process_id; give both"
        )
    jax.distributed.initialize(
        None if coordinator == AUTO else coordinator,
        num_processes,
        process_id,
        heartbeat_timeout_seconds=heartbeat_seconds,
        initialization_timeout=join_seconds,
        # Given the numbers, no cluster is asked: it might know a different job.
        cluster_detection_method=None if coordinator == AUTO else "deactivate",
    )


@contextmanager
def job(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    join_seconds: int = JOIN_SECONDS,
) -> Iterator[None]:
    """``initialize``, and end on all hosts once the block has failed on one.

    What fails is printed on its own host with the host's number; every other process exits with
    status 1 and a message that names that host, within about a second. A host that dies without a
    word (a kill, a lost machine) is missed after ``heartbeat_seconds``, and process 0 at once:
    JAX then aborts the others and names the dead one. Of a whole job no process is left after
    ``heartbeat_seconds`` and a few more, unless the machine itself hangs.

    Example:
        >>> with job():
        ...     hosts = jax.process_count()
        >>> hosts
        1

    Raises:
        ValueError: as ``initialize``; or there are several hosts, and none was told to join.
    """
    initialize(
        coordinator,
        num_processes,
        process_id,
        heartbeat_seconds=heartbeat_seconds,
        join_seconds=join_seconds,
    )
    if jax.process_count() == 1:
        yield
        return
    if not jax.distributed.is_initialized():
        raise ValueError(
            f"coordinator: this is one of {jax.process_count()} hosts; give 'auto', so that they "
            "join"
        )
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(done,), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        _fail(error, done, heartbeat_seconds)
    done.set()
    watch.join()
    jax.distributed.shutdown()


def _client() -> Any:
    """The hosts' common store of keys, which JAX has no public name for."""
    from jax._src.distributed import global_state

    return global_state.client


def _watch(done: threading.Event) -> None:
    """Exit as soon as another host says that it failed: the main thread may wait for it forever."""
    while not done.wait(_POLL_SECONDS):
        said = _said()
        if said is not None:
            _say(f"ends, because {said}")
            _exit()


def _said() -> str | None:
    """What the first host to fail has said, if any has."""
    try:
        return _client().key_value_try_get(_FAILED)
    except jax.errors.JaxRuntimeError:
        return None


def _fail(error: BaseException, done: threading.Event, heartbeat_seconds: int) -> NoReturn:
    """Say what went wrong here, tell the others, and exit without waiting for them."""
    traceback.print_exception(error)
    if isinstance(error, jax.errors.JaxRuntimeError):
        # A program also fails because another host is gone; JAX or the watch then says which.
        _say(f"a program failed; if a host died, it is named within {heartbeat_seconds} seconds")
        time.sleep(heartbeat_seconds + 2)
    done.set()
    reason = f"host {jax.process_index()} failed: {_first_line(error)}"
    _say(reason)
    with suppress(jax.errors.JaxRuntimeError):  # another was first, or process 0 is gone
        _client().key_value_set(_FAILED, reason)
    if jax.process_index() == 0:
        time.sleep(4 * _POLL_SECONDS)  # the store goes with process 0: let the others read it
    _exit()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


def _say(text: str) -> None:
    host = f"host {jax.process_index()} of {jax.process_count()}"
    print(f"{host}: {text}", file=sys.stderr, flush=True)


def _exit() -> NoReturn:
    """Leave at once: a proper exit would wait for programs that others no longer take part in."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def host_rows(num_rows: int) -> slice:
    """Which of ``num_rows`` rows are this host's to read: an even share, in the hosts' order.

    >>> host_rows(7)
    slice(0, 7, None)
    """
    host, hosts = jax.process_index(), jax.process_count()
    return slice(host * num_rows // hosts, (host + 1) * num_rows // hosts)


def share(rows: Sequence[Sequence[int]]) -> tuple[list[list[int]], slice]:
    """Give every host the rows of all, and say which of them are its own.

    Rows are lists of token ids of any lengths, as many as each host likes. The rows of all stand
    one host after another. Results come in the same order: ``result.tokens[mine]``.

    >>> share([[5, 6, 7], [8]])
    ([[5, 6, 7], [8]], slice(0, 2, None))
    """
    if jax.process_count() == 1:
        return [list(row) for row in rows], slice(0, len(rows))
    size = np.array([len(rows), max(map(len, rows), default=0)], np.int32)
    counts, longest = multihost_utils.process_allgather(size).T
    # Bucketed, so that few shapes are compiled.
    padded = np.zeros((bucket(int(counts.max()), 8), bucket(int(longest.max()), 128) + 1), np.int32)
    for row, ids in enumerate(rows):
        padded[row, 0], padded[row, 1 : len(ids) + 1] = len(ids), ids
    every = multihost_utils.process_allgather(padded)
    whole = [
        row[1 : row[0] + 1].tolist()
        for of_host, num in zip(every, counts, strict=True)
        for row in of_host[:num]
    ]
    first = int(counts[: jax.process_index()].sum())
    return whole, slice(first, first + len(rows))


def from_first(tree: Any) -> Any:
    """Give every host what host 0 has: a pytree of numbers and arrays of the same shapes.

    >>> int(from_first(3))
    3
    """
    return multihost_utils.broadcast_one_to_all(tree)


def agree_on_seeds(seed: int | Sequence[int | None] | None, batch: int) -> list[int]:
    """Draw the seeds of all rows (``specjax.rng.draw_seeds``) on host 0, for every host.

    Raises:
        ValueError: as ``draw_seeds``.

    >>> agree_on_seeds(7, 2)
    [7, 8]
    """
    return from_first(np.asarray(rng.draw_seeds(seed, batch), np.uint32)).tolist()


def to_global(
    mesh: Mesh, array: Shaped[np.ndarray | Array, "..."], axes: Sequence[str | None] = ("data",)
) -> Shaped[Array, "..."]:
    """Put together one array on the mesh from the part that each host holds.

    ``axes`` names the mesh axis that each dimension is cut along, as in a ``PartitionSpec``. A
    host gives what its devices are to hold: its own rows where the hosts divide that axis among
    them, the whole where they do not. Each host's devices must form a block of the mesh.

    >>> from specjax.sharding import make_mesh
    >>> mesh = make_mesh(1, 1, jax.devices()[:1])
    >>> to_local(mesh, to_global(mesh, np.arange(3))).tolist()
    [0, 1, 2]
    """
    spec = PartitionSpec(*axes)
    return multihost_utils.host_local_array_to_global_array(np.asarray(array), mesh, spec)


def to_local(
    mesh: Mesh, array: Shaped[Array, "..."], axes: Sequence[str | None] = ("data",)
) -> Shaped[np.ndarray, "..."]:
    """Take this host's part of an array that lies on the mesh: the way back of ``to_global``."""
    spec = PartitionSpec(*axes)
    return np.asarray(multihost_utils.global_array_to_host_local_array(array, mesh, spec))
