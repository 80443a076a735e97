"""Other programs that decode the same weights, to measure against."""

from specjax.bench.peers.peer import PEERS, Peer, load_peer

__all__ = ["PEERS", "Peer", "load_peer"]
