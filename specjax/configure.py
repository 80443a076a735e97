"""From what a user asks for to a program: defaults, and refusals before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.drafters import Plain
from specjax.program import Program
from specjax.prompts import is_int
from specjax.protocols import Policy, StoppingRule, Verifier
from specjax.sharding import layout_of
from specjax.verify import Block, Coupled, Token, Typical

VERIFIERS = {"token": Token, "block": Block, "coupled": Coupled, "typical": Typical}


def choose_drafter(drafter: Any) -> Any:
    """The drafter given, or none at all."""
    if drafter is None:
        return Plain()
    if isinstance(drafter, type) or not hasattr(drafter, "propose"):
        raise ValueError(
            f"drafter: must be a Drafter such as specjax.drafters.NGram(4) or "
            f"specjax.drafters.DraftModel(model), or None; got {drafter!r:.60}"
        )
    return drafter


def choose_verifier(verifier: str | Verifier | None, drafter: Any) -> Verifier:
    """Look a verifier up by name, or take the one that loses least for this kind of draft.

    >>> from specjax.drafters import NGram
    >>> choose_verifier(None, NGram(4))
    Coupled(coupled=True, exact=True, branching=True)
    """
    if verifier is None:
        if not drafter.samples:
            return Coupled()
        return Block() if drafter.num_nodes == drafter.depth else Token()
    if isinstance(verifier, str):
        if verifier not in VERIFIERS:
            raise ValueError(f"verifier: unknown {verifier!r}; known are {', '.join(VERIFIERS)}")
        return VERIFIERS[verifier]()
    if isinstance(verifier, type) or not hasattr(verifier, "accept"):
        raise ValueError(f"verifier: must be a name or a Verifier, got {verifier!r}")
    return verifier


def choose_widths(
    widths: Sequence[int] | None, drafter: Any, policy: Policy | None, stopping: StoppingRule | None
) -> tuple[int, ...] | None:
    """Draft nodes that the target's pass is compiled for; several where drafts differ in length.

    >>> from specjax.drafters import NGram
    >>> choose_widths(None, NGram(8), None, None), choose_widths([0, 3], NGram(8), None, None)
    (None, (0, 3))
    """
    if widths is None:
        if policy is None and stopping is None:
            return None
        return default_widths(drafter)
    widths = list(widths) if isinstance(widths, Sequence | np.ndarray) else [widths]
    if not all(is_int(width) and width >= 0 for width in widths):
        raise ValueError(f"widths: must be ints from 0 up, numbers of draft nodes, got {widths!r}")
    return tuple(sorted({int(width) for width in widths}))


def default_widths(drafter: Any) -> tuple[int, ...]:
    """Draft nodes to compile for where drafts differ in length: none, 2, 4, 8 ... and all."""
    return (0, *(2**i for i in range(1, 10) if 2**i < drafter.num_nodes))


def check_program(program: Program) -> None:
    """Refuse what would be biased or could not run.

    Raises:
        ValueError: naming the part that does not go with the others.
    """
    target, drafter = program.target, program.drafter
    drafter.validate(target)
    if not program.is_chain and not program.verifier.branching:
        name = type(program.verifier).__name__.lower()
        raise ValueError(f"verifier: {name!r} judges chains only; use 'token' or 'coupled'")
    missing = [layer for layer in drafter.wants if not 0 <= layer < target.num_layers]
    if missing:
        raise ValueError(f"drafter: wants layers {missing}; the target has {target.num_layers}")
    if program.layout is None and layout_of(drafter) is not None:
        raise ValueError(
            "target: lies on one device, and the drafter's model on several; load both with mesh="
        )
    if program.stopping is not None:
        _check_stopping(program)
    if program.policy is not None:
        if not hasattr(program.policy, "caps"):
            raise ValueError(
                f"policy: must be a Policy such as specjax.Adaptive, got {program.policy!r:.60}"
            )
        program.policy.validate(drafter.depth)


def _check_stopping(program: Program) -> None:
    if not hasattr(program.stopping, "stops"):
        raise ValueError(
            "stopping: must be a StoppingRule such as specjax.stopping.Confidence(0.4), got "
            f"{program.stopping!r:.60}"
        )
    if not program.drafter.samples:
        raise ValueError(
            f"stopping: is asked before a token is drawn, and {type(program.drafter).__name__} "
            "draws none; drop it, or shorten drafts with policy="
        )


def num_tokens_of(tokenizer: Any, vocab_size: int) -> int | None:
    """Ids that have a token, where the model pads its vocabulary beyond them."""
    vocabulary = getattr(tokenizer, "vocabulary", None)
    num = max(vocabulary.values()) + 1 if vocabulary else vocab_size
    return num if num < vocab_size else None
