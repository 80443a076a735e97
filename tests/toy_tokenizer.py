"""A tokenizer that is nothing but the bytes of its tokens; empty ones are special."""

import dataclasses
from functools import cached_property


@dataclasses.dataclass
class ToyTokenizer:
    token_bytes: list

    @property
    def stop_ids(self):
        return (0,)

    @cached_property
    def by_first_byte(self):
        of = {t[0]: [] for t in self.token_bytes if t}
        for index, token in enumerate(self.token_bytes):
            if token:
                of[token[0]].append(index)
        return of

    def text(self, tokens):  # as bytes: it may end within a character
        return b"".join(self.token_bytes[t] for t in tokens)
