"""What a peer can do, and how one is loaded by name."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable

PEERS = {
    # name: (module, package that it needs, the extra of specjax that brings it)
    "transformers": ("transformers_peer", "torch", "bench"),
    "llama-cpp": ("llama_cpp_peer", "llama_cpp", "peers"),
}


@runtime_checkable
class Peer(Protocol):
    """A program that decodes one prompt greedily, in float32, on a number of threads."""

    name: str

    def generate(self, prompt: list[int], num: int, draft_length: int | None) -> list[int]:
        """Decode exactly ``num`` tokens, whatever they are, and return their ids.

        Nothing is kept from one call to the next.

        Args:
            prompt: token ids.
            num: of new tokens.
            draft_length: None is plain decoding; else so many tokens at most are drafted by
                prompt lookup, from an earlier place of the last ``NGRAM`` tokens or fewer.
        """
        ...


NGRAM = 2
"""The longest match of prompt lookup: the default of transformers and of llama-cpp-python."""


def load_peer(name: str, checkpoint: Any, *, num_threads: int, max_length: int = 4096) -> Peer:
    """Load a peer with the weights of one of our checkpoints.

    Args:
        name: a key of ``PEERS``.
        checkpoint: what ``specjax.io.load.open_checkpoint`` returns.
        num_threads: on which the peer may run.
        max_length: of prompt and answer together, in tokens.

    Raises:
        ValueError: there is no such peer, what it needs is not installed, or it cannot have
            these weights.
    """
    if name not in PEERS:
        raise ValueError(f"--peer: there is no {name!r}; known are {', '.join(PEERS)}")
    if num_threads < 1:
        raise ValueError(f"num_threads: must be positive, got {num_threads}")
    module, package, extra = PEERS[name]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"--peer {name}: {package} cannot be imported ({error}); pip install 'specjax[{extra}]'"
        ) from error
    peer = importlib.import_module(f"specjax.bench.peers.{module}")
    return peer.load(checkpoint, num_threads=num_threads, max_length=max_length)
