"""From an automaton over bytes to one over tokens, column by column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int


def token_columns(
    table: Int[np.ndarray, "S 256"], tokens: Sequence[bytes]
) -> tuple[Int[np.ndarray, " V"], Int[np.ndarray, "S C"]]:
    """Class of each token, and the next state of each class; class 0 is never allowed.

    A token is a walk along its bytes from all states at once; sorted tokens share the walk of a
    common prefix, and bytes that no state tells apart are one letter. At no time are there more
    columns than classes and letters of the longest token. An empty token belongs to class 0.
    """
    columns, letters = np.unique(table, axis=1, return_inverse=True)
    # A last state that is dead, where index -1 leads.
    columns = np.pad(columns, ((0, 1), (0, 0)), constant_values=-1).T.copy()
    alphabet = bytes(letters.ravel().astype(np.uint8).tolist())
    spelled = [token.translate(alphabet) for token in tokens]
    nowhere = np.full(len(table), -1, np.int32)
    number, distinct, of_word = {nowhere.tobytes(): 0}, [nowhere], {b"": 0}
    walk, before = [np.arange(len(table), dtype=np.int32)], b""
    for word in sorted(set(spelled) - {b""}):
        del walk[_common(before, word) + 1 :]
        for letter in word[len(walk) - 1 :]:
            walk.append(columns[letter][walk[-1]])
        key = walk[-1].tobytes()
        if key not in number:
            number[key] = len(distinct)
            distinct.append(walk[-1])
        of_word[word], before = number[key], word
    return np.array([of_word[word] for word in spelled], np.int32), np.stack(distinct, axis=1)


def _common(a: bytes, b: bytes) -> int:
    """Length of the common prefix."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def trim(
    classes: Int[np.ndarray, " V"], table: Int[np.ndarray, "S C"], final: Bool[np.ndarray, " S"]
) -> tuple[Int[np.ndarray, " V"], Int[np.ndarray, "R D"], Int[np.ndarray, " R"]]:
    """Keep the states that tokens reach from state 0 and from which tokens reach an end.

    Returns the classes and the table without all others, and the old number of each state kept.

    Raises:
        ValueError: state 0 is not kept.
    """
    used = np.zeros(table.shape[1], bool)
    used[classes] = True
    table = np.where(used, table, -1)
    keep = _reached(table, [0]) & _reaching(table, final)
    if not keep[0]:
        raise ValueError(
            "pattern: no sequence of this tokenizer's tokens matches it as a whole; "
            "widen the pattern"
        )
    old = np.flatnonzero(keep)
    number = np.full(len(table) + 1, -1, np.int32)  # -1 leads to the last, and stays -1
    number[old] = np.arange(len(old))
    table = number[table[old]]
    # Columns that differed only in what was cut away are now the same; class 0 stays the first.
    table = np.concatenate([np.full((len(old), 1), -1, np.int32), table], axis=1)
    _, first, merged = np.unique(table.T.copy(), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[merged.ravel()[classes + 1]].astype(np.int32), table[:, first[order]], old


def _reached(table: np.ndarray, start: Sequence[int]) -> np.ndarray:
    """States to which some tokens lead."""
    seen = np.zeros(len(table), bool)
    frontier = np.asarray(start)
    while frontier.size:
        seen[frontier] = True
        following = np.unique(table[frontier])
        following = following[following >= 0]
        frontier = following[~seen[following]]
    return seen


def _reaching(table: np.ndarray, final: np.ndarray) -> np.ndarray:
    """States from which some tokens lead to a final one."""
    source, column = np.nonzero(table >= 0)
    # Both in one number, so that sorting gives each state its predecessors in a row.
    edges = np.unique(table[source, column].astype(np.int64) * len(table) + source)
    target, source = np.divmod(edges, len(table))
    begin = np.searchsorted(target, np.arange(len(table) + 1))
    seen = final.copy()
    frontier = np.flatnonzero(final)
    while frontier.size:
        before = np.unique(np.concatenate([source[begin[s] : begin[s + 1]] for s in frontier]))
        frontier = before[~seen[before]]
        seen[frontier] = True
    return seen


def only_tokens(
    classes: Int[np.ndarray, " V"], table: Int[np.ndarray, "S C"], final: Bool[np.ndarray, " S"]
) -> Int[np.ndarray, " S"]:
    """The token of each state that allows just one and where a text may not end, -1 elsewhere."""
    first = np.full(table.shape[1], -1, np.int32)
    first[classes[::-1]] = np.arange(len(classes), dtype=np.int32)[::-1]
    size = np.bincount(classes, minlength=table.shape[1])
    allowed = table >= 0
    return np.where((allowed @ size == 1) & ~final, first[(allowed * size).argmax(1)], -1)


def likely_tokens(
    table: Int[np.ndarray, "S 256"], final: Bool[np.ndarray, " S"], tokens: Sequence[bytes]
) -> Int[np.ndarray, " S"]:
    """The longest token of the text that must follow each state, -1 where none must.

    A tokenizer nearly always spells a text with its longest tokens, and so does its model.
    """
    longest = max(map(len, tokens), default=0)
    alive = _reaching(table, final)
    follows = (table >= 0) & alive[table]
    sure = (follows.sum(1) == 1) & ~final & alive
    byte = np.append(np.where(sure, follows.argmax(1), -1), -1)
    at = np.arange(len(table))
    text = np.full((len(table), longest), -1)
    for place in range(longest):
        text[:, place] = byte[at]
        at = np.where(byte[at] >= 0, table[at, byte[at]], -1)
    number = {token: index for index, token in reversed(list(enumerate(tokens))) if token}
    found = np.full(len(table), -1, np.int32)
    for state in np.flatnonzero(sure):
        following = bytes(text[state][text[state] >= 0].tolist())
        for size in range(len(following), 0, -1):
            if following[:size] in number:
                found[state] = number[following[:size]]
                break
    return found
