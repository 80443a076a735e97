"""What targets, drafters, verifiers and processors promise, so that any may be written elsewhere.

Shapes are those of ``specjax.types``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from specjax.types import Context, Draft, Drawn, Node, Sampling, Verdict


@runtime_checkable
class Cache(Protocol):
    """Per-row storage of a model: slots 0..length-2 are committed, all others are scratch."""

    def insert(self, slot: Int[Array, ""] | int, one: Self) -> Self:
        """Put the single row of ``one`` into row ``slot``."""
        ...

    def compact(self, start: Int[Array, " B"], path: Int[Array, "B K"]) -> Self:
        """Make a path contiguous: move slot start + path[:, j] to slot start + 1 + j."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back; compared by what it maps, not by identity.

    ``special_ids`` add nothing to a text, ``byte_ids`` are tokens of a single byte;
    ``token_bytes`` is what each id adds to a text in UTF-8, from id 0 on.
    """

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> list[int]: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def byte_ids(self) -> frozenset[int]: ...
    @property
    def token_bytes(self) -> Sequence[bytes]: ...
    @property
    def vocabulary(self) -> dict[str, int]: ...


class Target(Protocol):
    """Any language model: a pytree whose leaves are its weights. A draft model is one too.

    ``max_length`` is the longest sequence it was built for, ``None`` where there is none;
    ``num_layers`` is how many layers ``layers`` and ``capture`` may name.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int | None: ...
    @property
    def num_layers(self) -> int: ...

    def init_cache(self, batch: int, capacity: int, *, scratch: int | None = None) -> Cache:
        """Allocate a cache of ``capacity`` slots a row.

        No pass will write ``scratch`` slots or more beyond the start of a later one: a layer that
        sees a window may keep a ring of that many slots more. None promises nothing.
        """
        ...

    def extend(
        self,
        inputs: Int[Array, "B T"] | Float[Array, "B T D"],
        start: Int[Array, " B"],
        cache: Any,
        *,
        count: Int[Array, " B"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T R"] | None = None,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Array, "B T D"], Any, tuple[Float[Array, "B T D"], ...]]:
        """Run T positions of each row and write slots start..start+count-1.

        ``inputs`` are token ids, or hidden states when ``layers`` begins later than 0.
        ``positions`` defaults to start..start+T-1. ``mask[:, t, r]`` says whether input t sees
        slot r of the last R slots ending with the T new ones (R >= T; earlier slots are all
        visible); ``None`` is causal. Nothing is ever written at or beyond ``count``.
        Returns hidden states *before* the final norm, the cache, and the output of every
        captured layer.

        Raises:
            ValueError: a captured layer is not run.
        """
        ...

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look the tokens up, as the first layer sees them."""
        ...

    def unembed(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Final norm and output head: hidden states to logits in float32 or wider."""
        ...


class Draw(Protocol):
    """The loop's hand in drafting: draws children so that what is recorded is what was drawn from.

    It replays the row's processors along each node's path and uses the noise that the verifier
    asks for, so no drafter can warp differently or record another law. ``cap`` and ``active``
    are the only limits of a row; a composite may narrow them, to some rows and to the kinds of
    draft that are one drafter's. ``find`` gives the processor of a type, with its state in every
    row.
    """

    @property
    def active(self) -> Bool[Array, " B"]: ...
    @property
    def cap(self) -> Int[Array, " B"]: ...
    @property
    def records_law(self) -> bool: ...
    def root(self) -> Node: ...
    def __call__(self, logits: Float[Array, "B F W"], node: Node, num: int = 1) -> Drawn: ...
    def narrow(self, allowed: Bool[Array, " B"]) -> Draw: ...
    def for_kinds(self, first: int, num: int) -> Draw: ...
    def find(self, kind: type) -> tuple[Any, Any] | None: ...


class Drafter(Protocol):
    """Proposes a draft. A pytree: its leaves are stores and weights, its configuration is static.

    ``depth`` is K; ``num_nodes`` is N, equal to K for a chain; ``tree_depth`` is the deepest
    node fed, >= K. ``wants`` names the target layers whose features ``observe`` needs.
    ``samples`` says that nodes are drawn from a law, False that they are point masses;
    ``rows_independent`` that a row's drafts depend on that row alone. ``num_kinds`` is how many
    classes ``Draft.kind`` tells apart, 1 where there is no such attribute.

    The target is fed the first nodes of a draft, as many as the last valid one of any row needs:
    valid nodes come first.
    """

    @property
    def depth(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def tree_depth(self) -> int: ...
    @property
    def wants(self) -> tuple[int, ...]: ...
    @property
    def samples(self) -> bool: ...
    @property
    def rows_independent(self) -> bool: ...

    def validate(self, target: Any) -> None:
        """Raise ValueError where drafts for ``target`` cannot be made, naming the reason."""
        ...

    def init(self, target: Any, batch: int, capacity: int) -> Any:
        """Allocate the drafter's state, for ``capacity`` slots a row, and nothing else."""
        ...

    def observe(
        self,
        target: Any,
        state: Any,
        tokens: Int[Array, "B T"],
        start: Int[Array, " B"],
        count: Int[Array, " B"],
        features: tuple[Float[Array, "B T D"], ...],
    ) -> Any:
        """See what was committed: tokens[:, :count] at positions start...; each passes here once.

        In a round tokens[:, 0] is the newest token at its start, and count is the number of
        tokens emitted, 0 for inactive rows; features[i][:, t] belongs to tokens[:, t].
        """
        ...

    def propose(
        self, target: Any, cache: Any, state: Any, context: Context, draw: Draw, *, width: int
    ) -> tuple[Draft, Any, Any]:
        """Return a draft no deeper than ``width``, the drafter's state, and the target's cache."""
        ...


@runtime_checkable
class Feedback(Protocol):
    """A drafter that also wants the target's argmax at every node, accepted or not.

    All its nodes are fed in every round.
    """

    def feedback(self, state: Any, draft: Draft, top: Int[Array, "B M"]) -> Any: ...


class StoppingRule(Protocol):
    """Ends a draft early. A pytree: thresholds are leaves.

    It is asked before a token is drawn and never sees it, or anything after: that is what keeps
    every ratio rule exact. To drop a token because it is unlikely would not.
    """

    def stops(self, q: Float[Array, "B F V"], depth: Int[Array, "B F"]) -> Bool[Array, "B F"]:
        """Whether nothing is to be drawn after a node; ``q`` is the law it would be drawn from.

        At temperature 0, where that law is a point mass, ``q`` is the law at temperature 1.
        """
        ...


class Policy(Protocol):
    """Chooses each row's longest draft before a round, from what is past. A pytree.

    A round's kind C is the drafter's ``Draft.kind``. ``rows_independent`` says that a row's choice
    depends on that row alone.
    """

    @property
    def rows_independent(self) -> bool: ...

    def validate(self, depth: int) -> None:
        """Raise ValueError where drafts of this depth cannot be planned for."""
        ...

    def init(self, batch: int, depth: int, num_kinds: int) -> Any:
        """Allocate the state, [B, ...]."""
        ...

    def caps(self, state: Any, active: Bool[Array, " B"]) -> Int[Array, "B C"]:
        """The longest draft for each row and kind; 0 decodes plainly."""
        ...

    def update(
        self,
        state: Any,
        kind: Int[Array, " B"],
        drafted: Int[Array, " B"],
        num_accepted: Int[Array, " B"],
    ) -> Any:
        """Learn from a round whose deepest valid node was ``drafted`` deep."""
        ...


class Verifier(Protocol):
    """Decides how much of a draft to keep. Pure: all randomness comes in as ``coins``.

    ``coupled`` says which noise it wants. False: ``coins`` are uniforms f32[B, N], fresh each
    round. True: ``coins`` i32[B, N + 1] are one draw of the target at each node, made with noise
    keyed by absolute position, the noise that drafts and plain decoding use too, and -1 where no
    token is allowed.
    ``branching`` says whether trees with more than one child at a node are allowed, ``exact``
    whether the output keeps the target's law.
    """

    @property
    def coupled(self) -> bool: ...
    @property
    def exact(self) -> bool: ...
    @property
    def branching(self) -> bool: ...

    def accept(
        self,
        draft: Draft,
        p: Float[Array, "B M V"],
        coins: Float[Array, "B N"] | Int[Array, "B M"],
    ) -> Verdict:
        """Return the accepted path and the next law; ``p[:, i]`` is the law after node i."""
        ...


class Processor(Protocol):
    """Changes logits along a node's path. Written for one row; the loop maps it over rows.

    ``row`` holds that row's ``Sampling`` values; they are never copied into the state ``h``.
    """

    def init(self, tokens: Int[Array, " L"], length: Int[Array, ""], row: Sampling) -> Any: ...
    def advance(self, h: Any, token: Int[Array, ""]) -> Any: ...
    def apply(self, logits: Float[Array, " V"], h: Any, row: Sampling) -> Float[Array, " V"]: ...


@runtime_checkable
class FollowsPaths(Protocol):
    """A processor that takes the first ``depth`` tokens of a path at once.

    Without it ``advance`` is called for each; for a large state that is much slower.
    """

    def follow(self, h: Any, path: Int[Array, " K"], depth: Int[Array, ""]) -> Any: ...
