"""``autotune``: measure once which drafter pays here and how, and remember it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from specjax.api import Decoder
from specjax.bench.costs import middling
from specjax.prompts import Prompt, is_int
from specjax.settings import Settings
from specjax.tuning import saved
from specjax.tuning.costs import RoundCosts, measure
from specjax.tuning.examples import default_prompts
from specjax.tuning.families import Family, families_of
from specjax.tuning.fingerprint import fingerprint, machine
from specjax.tuning.trials import Texts, Trial, run_trials
from specjax.tuning.tuned import Tuned


def autotune(
    target: Any,
    drafters: Sequence[Any] | None = None,
    *,
    prompts: Sequence[Prompt] | None = None,
    draft_lengths: Sequence[int] = (2, 4, 8),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    repeats: int = 3,
    margin: float = 0.02,
    cache: str | os.PathLike[str] | bool | None = True,
) -> Tuned:
    """Choose drafter, draft length, tree and widths by what they cost and bring on this machine.

    c and v are measured here, one row at a time. What drafts bring is counted on ``prompts``:
    drafters that read text alone are replayed on what plain decoding says, the others decode it.
    The speedup is predicted as tokens over what their rounds cost (Leviathan et al. 2023, theorem
    3.8, with measured v), for each draft length and for lengths that adapt. Plain decoding is
    always a candidate. A minute or two; the next call with the same of everything takes none.

    Args:
        target: a model from ``specjax.load``, or any ``specjax.protocols.Target``.
        drafters: drafters, or functions from draft length to drafter, such as ``NGram`` or
            ``lambda k: DraftModel(model, k)``. Default: those that need no training.
        prompts: what is typical of your use; a few built-in texts if None.
        draft_lengths: what such functions are called with.
        max_new_tokens: tokens to decode of each prompt.
        temperature: 0 is greedy; drafts that are drawn are accepted less at higher ones.
        repeats: turns of measuring.
        margin: the share that a drafter has to gain on plain decoding to be chosen.
        cache: the folder that results are kept in, True for ``~/.cache/specjax/autotune``, None to
            keep none. Weights are not kept, but their shapes and a few of their numbers count.

    Raises:
        ValueError: an argument is out of range, or a drafter is not for this target, by name.
    """
    plain = Decoder(target)
    _check(plain, max_new_tokens, repeats, margin)
    families = families_of(target, drafters, draft_lengths)
    ids = plain.encode(default_prompts(target) if prompts is None else prompts)
    settings: Settings = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": 0}
    plain.prepare(ids, **settings)  # refuses before anything is measured
    key = _key(target, families, ids, {**settings, "repeats": repeats})
    path = saved.path_of(cache, key)
    choose = partial(Tuned.choose, target, families, margin)
    if path is not None and (tuned := saved.read(path, key, choose)):
        return tuned
    tuned = choose(*_measured(target, families, ids, settings, max_new_tokens, repeats))
    if path is not None:
        saved.write(path, key, tuned)
    return tuned


def _check(plain: Decoder, max_new_tokens: Any, repeats: Any, margin: Any) -> None:
    for name, value in (("max_new_tokens", max_new_tokens), ("repeats", repeats)):
        if not is_int(value) or value < 1:
            raise ValueError(f"{name}: must be an int of at least 1, got {value!r}")
    if not isinstance(margin, int | float) or not 0 <= margin < 1:
        raise ValueError(f"margin: must be a share from 0 to below 1, got {margin!r}")
    layout = plain.program.layout
    if layout is not None and layout.mesh.is_multi_process:
        raise ValueError(
            "target: lies on several hosts, each of which could choose otherwise; tune on one, and "
            "build the Decoder from what it chose"
        )


def _measured(
    target: Any,
    families: list[Family],
    prompts: list[list[int]],
    settings: Settings,
    max_new_tokens: int,
    repeats: int,
) -> tuple[list[RoundCosts], list[Trial]]:
    room: Settings = {"max_new_tokens": max_new_tokens}
    costs = measure(target, families, middling(prompts), repeats, room)
    texts = Texts.decode(target, prompts, settings)
    return costs, run_trials(target, families, costs, texts)


def _key(target: Any, families: list[Family], prompts: list[list[int]], settings: Any) -> str:
    return fingerprint(
        machine=machine(target),
        target=target,
        drafters=[family.members for family in families],
        prompts=prompts,
        settings=settings,
    )
