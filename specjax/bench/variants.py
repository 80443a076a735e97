"""Those who are compared: plain decoding, and every drafter with every length and verifier."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from specjax.api import Decoder
from specjax.bench.adapt import adapt
from specjax.bench.peers import Peer

PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A decoder under a name. ``verifier`` is that of its program."""

    name: str
    decoder: Decoder
    draft_length: int = 0
    adaptive: bool = False

    @property
    def verifier(self) -> str:
        """The verifier's name."""
        return type(self.decoder.program.verifier).__name__.lower()

    def to_dict(self) -> dict[str, Any]:
        """What it is, for JSON."""
        program = self.decoder.program
        return {
            "name": self.name,
            "drafter": type(program.drafter).__name__,
            "draft_length": self.draft_length,
            "verifier": self.verifier,
            "adaptive": self.adaptive,
            "exact": program.verifier.exact,
        }


@dataclasses.dataclass(frozen=True)
class PeerVariant:
    """A peer under a name: plain, or with drafts of ``draft_length`` tokens by prompt lookup."""

    name: str
    peer: Peer
    draft_length: int | None = None


def peer_variants_of(peers: Sequence[Peer], draft_lengths: Sequence[int]) -> list[PeerVariant]:
    """Every peer plainly, then with drafts of every length."""
    found = []
    for peer in peers:
        found.append(PeerVariant(peer.name, peer))
        for length in draft_lengths:
            found.append(PeerVariant(f"{peer.name}, lookup, K = {length}", peer, length))
    return found


def variants_of(
    target: Any,
    drafters: Sequence[str],
    draft_lengths: Sequence[int],
    verifiers: Sequence[str | None],
    make: Callable[[str, int], Any],
) -> list[Variant]:
    """Plain decoding, then every drafter, of every length, under every verifier.

    Args:
        target: decodes.
        drafters: names, each once.
        draft_lengths: tokens a draft.
        verifiers: names, None for the default of each drafter.
        make: a drafter from its name and draft length.

    Raises:
        ValueError: a name is given twice, or parts do not go together.
    """
    for name, values in {
        "--drafter": drafters,
        "--draft-length": draft_lengths,
        "--verifier": verifiers,
    }.items():
        refuse_repeated(name, values)
    found = [Variant(PLAIN, Decoder(target))]
    for drafter, length in itertools.product(drafters, draft_lengths):
        if drafter == "none":
            continue
        made = make(drafter, length)
        for verifier in verifiers:
            decoder = Decoder(target, made, verifier=verifier)
            name = f"{drafter}, K = {length}" + (f", {verifier}" if verifier else "")
            found.append(Variant(name, decoder, made.depth))
    return found


def adapted(variant: Variant, prompt: list[int]) -> Variant:
    """The same with drafts as long as pays, by costs measured after ``prompt``."""
    decoder = adapt(variant.decoder, prompt, max_new_tokens=room_for(variant.decoder, prompt))
    return Variant(f"{variant.name}, adaptive", decoder, variant.draft_length, adaptive=True)


def room_for(decoder: Decoder, prompt: list[int]) -> int:
    """Tokens to allocate after ``prompt`` where costs are measured."""
    longest = decoder.max_length
    return 128 if longest is None else max(min(128, longest - len(prompt)), 1)


def refuse_repeated(name: str, values: Sequence[Any]) -> None:
    """Refuse a value that is given twice: it would be measured twice under one name.

    Raises:
        ValueError: naming it.
    """
    for value in values:
        if list(values).count(value) > 1:
            raise ValueError(f"{name}: {value} is given twice; drop one")
