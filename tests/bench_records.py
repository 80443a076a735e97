"""Records made by hand, of calls that took what they are said to have taken."""

from specjax.bench.records import Answer, Record

DEPTH = 2


def answer(question="q", num_tokens=4, kept=(), **given):
    """An answer; ``kept[a]`` rounds of depth 2 kept a draft tokens, none: plain decoding."""
    drafting = bool(kept)
    outcomes = [[0] * (DEPTH + 1) for _ in range(DEPTH + 1)] if drafting else [[num_tokens]]
    if drafting:
        outcomes[DEPTH] = list(kept)
    counted = {
        "num_rounds": sum(kept) if drafting else num_tokens,
        "num_draft_tokens": DEPTH * sum(kept),
        "outcomes": outcomes,
    }
    asked = {"question": question, "turn": 1, "temperature": 0.0, "prompt_length": 3}
    came = {"tokens": [7] * num_tokens, "finish_reason": "length", "must_agree": True}
    return Answer(**{**asked, **came, **counted, **given})


def record(contestant, category, seconds, *answers, prefill=0.0, **given):
    """A call of one contestant."""
    condition = {"temperature": 0.0, "batch": len(answers), **given}
    return Record(
        contestant, category, seconds=seconds, answers=list(answers), prefill_seconds=prefill,
        **condition,
    )  # fmt: skip


PLAIN_AND_FAST = [
    record("plain", "chat", [4.0, 4.0, 5.0], answer("a", 8)),
    record("fast", "chat", [2.0, 1.0, 4.0], answer("a", 8, kept=(1, 2, 1))),
    record("plain", "chat", [2.0, 2.0, 2.0], answer("b", 4)),
    record("fast", "chat", [2.0, 3.0, 2.0], answer("b", 4, kept=(4, 0, 0), differs_at=3)),
    record("plain", "qa", [6.0, 3.0, 1.0], answer("c", 6)),
    record("fast", "qa", [1.0, 1.0, 1.0], answer("c", 6, kept=(0, 0, 2))),
]
"""Two questions of chat and one of qa, each plainly and with drafts of two tokens."""
