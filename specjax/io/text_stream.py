"""Text as it is made: pieces of a token stream that never cut a character in two."""

from __future__ import annotations

from collections.abc import Sequence

from specjax.protocols import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Decode tokens one by one; all pieces joined are ``tokenizer.decode`` of all tokens.

    Decoding a token alone is not enough: a character may be spread over several, and a decoder
    drops the space before the first. So the last tokens are decoded together, and a piece is
    what their text has grown by; what may still change is held back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._tokens: list[int] = []  # the newest ones, enough to decode what follows
        self._given = 0  # characters of their text that have been handed out

    def push(self, tokens: Sequence[int]) -> str:
        """Take more tokens and return the text that is certain now, perhaps none."""
        return "".join([self._push(int(token)) for token in tokens])

    def flush(self) -> str:
        """Return what was held back; the stream is then ready for another text."""
        rest = self.tokenizer.decode(self._tokens)[self._given :]
        self._tokens, self._given = [], 0
        return rest

    def _push(self, token: int) -> str:
        if token in self.tokenizer.special_ids:  # adds nothing and must not end a character
            return ""
        self._tokens.append(token)
        text = self.tokenizer.decode(self._tokens)
        # Whether a run of byte tokens is valid is known when another kind of token follows.
        if token in self.tokenizer.byte_ids or text.endswith(_BROKEN):
            return ""
        piece, self._given = text[self._given :], len(text)
        alone = self.tokenizer.decode([token])
        if alone:  # a first token of its own: a later one keeps its leading space
            self._tokens, self._given = [token], len(alone)
        return piece
