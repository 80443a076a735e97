"""Every round of a decode as a small table: what was drafted, how it was judged, what was kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import compiled
from specjax.api import Decoder
from specjax.columns import table
from specjax.loop import Round
from specjax.result import Result
from specjax.types import RUNNING
from specjax.verify import Block

TEXT_WIDTH = 22


def traced(decoder: Decoder, ids: list[int], settings: dict[str, Any]) -> Result:
    """Decode one prompt round by round and print each; the tokens are those of ``generate``."""
    call = decoder.prepare([ids], **settings)
    state = compiled.begin(call.program, call.request, chunk=decoder.prefill_chunk)
    print("p: the target's law after what is drafted above, q: the draft's.")
    print(rule(decoder))
    greedy = not settings.get("temperature")
    print("Temperature 0: p is 1 for the likeliest token and 0 for all others.\n" if greedy else "")
    number = 0
    while int(state.finish[0]) == RUNNING:
        number += 1
        length = int(state.context.length[0])
        state, seen = compiled.watched_round(call.program, state)
        print(*round_lines(decoder, jax.device_get(seen), number, length), "", sep="\n")
    return decoder.collect(call, compiled.output_of(call.program, state))


def round_lines(decoder: Decoder, seen: Round, number: int, length: int) -> list[str]:
    """One round of a batch of one; ``length`` is the number of tokens before it."""
    drafted = int(np.cumprod(seen.draft.valid[0]).sum())
    accepted, count = int(seen.verdict.num_accepted[0]), int(seen.count[0])
    rows = [draft_row(decoder, seen, i) for i in range(drafted)]
    last = "bonus" if accepted == drafted else "correction"
    lines = [f"round {number}: {accepted} of {drafted} draft tokens kept"]
    columns = heading(decoder)
    words = (0, len(columns) - 1)
    shown_rows = table([columns, *rows], left=words) if rows else ["no draft: a plain step"]
    lines += [f"  {line}" for line in shown_rows]
    if count > accepted:
        token = int(seen.emitted[0, accepted])
        p = seen.p[0, accepted, token]
        lines += [f"  {last if rows else 'token'} {shown(decoder, token)}, p {p:.4f}"]
    if count < accepted + 1:
        lines += [f"  only {count} emitted: then came the stop token, the budget, or a dead end"]
    return [*lines, slots_line(length, count, seen.draft.tokens.shape[1])]


def rule(decoder: Decoder) -> str:
    """When a draft token is kept, in a sentence."""
    verifier = decoder.program.verifier
    if verifier.coupled:
        return "Kept: up to the first token that is not the target's own draw."
    if isinstance(verifier, Block):
        return "Kept: up to the last token whose coin is below its h."
    return "Kept: up to the first token whose coin is not below p/q."


def heading(decoder: Decoder) -> list[str]:
    """What the columns are under this verifier."""
    verifier = decoder.program.verifier
    if verifier.coupled:
        return ["draft", "p", "q", "p/q", "target's draw", "verdict"]
    if isinstance(verifier, Block):
        return ["draft", "p", "q", "p/q", "h", "coin", "verdict"]
    return ["draft", "p", "q", "p/q", "coin", "verdict"]


def draft_row(decoder: Decoder, seen: Round, i: int) -> list[str]:
    """One draft token: it is judged by the laws after node i."""
    token = int(seen.draft.tokens[0, i])
    p, q = float(seen.p[0, i, token]), law_at(decoder, seen, i, token)
    ratio = "-" if np.isnan(q) else f"{p / q:.4g}"
    row = [shown(decoder, token), f"{p:.4f}", "-" if np.isnan(q) else f"{q:.4f}", ratio]
    if decoder.program.verifier.coupled:
        row.append(shown(decoder, int(seen.coins[0, i])))
    else:
        if isinstance(decoder.program.verifier, Block):
            draft, p = jax.tree.map(jnp.asarray, (seen.draft, seen.p))
            h, _ = decoder.program.verifier.thresholds(draft, p)
            row.append(f"{float(h[0, i]):.4f}")
        row.append(f"{float(seen.coins[0, i]):.4f}")
    return [*row, verdict_of(decoder, seen, i)]


def law_at(decoder: Decoder, seen: Round, i: int, token: int) -> float:
    """q of a draft token; NaN where the verifier had no use for it and none was recorded."""
    if seen.draft.probs is not None:
        return float(seen.draft.probs[0, i, token])
    return float("nan") if decoder.program.drafter.samples else 1.0


def verdict_of(decoder: Decoder, seen: Round, i: int) -> str:
    """What became of draft token i."""
    accepted = int(seen.verdict.num_accepted[0])
    if i < accepted:
        return "accepted"
    if i == accepted or isinstance(decoder.program.verifier, Block):
        return "rejected"
    return "not judged"


def slots_line(length: int, count: int, num_nodes: int) -> str:
    """The pass wrote slots length-1 ... length-1+N; what was emitted decides which count."""
    kept = f"{length - 1}..{length + count - 2}" if count else "none"
    left = f"{length + count - 1}..{length + num_nodes - 1}" if count <= num_nodes else "none"
    return f"  cache slots kept {kept}, rewound {left}"


def special_name(decoder: Decoder, token: int) -> str:
    """What the vocabulary calls a token without text, its id where there is no vocabulary."""
    vocabulary = getattr(decoder.tokenizer, "vocabulary", {})
    return next((name for name, index in vocabulary.items() if index == token), f"#{token}")


def shown(decoder: Decoder, token: int) -> str:
    """A token's text in quotes; a special token's name, which is no text, without."""
    text = "" if decoder.tokenizer is None else decoder.tokenizer.decode([token])
    quoted = repr(text) if text else special_name(decoder, token)
    return quoted if len(quoted) <= TEXT_WIDTH else quoted[: TEXT_WIDTH - 1] + "…"
