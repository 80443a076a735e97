"""The tokenizer inside a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from specjax.io.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
)
"""How tiktoken's cl100k splits text; Llama 3 and Qwen 2 differ in how many digits make a word."""

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SUFFIX|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SUFFIX"
    r"|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST
)
"""How its o200k does, which cuts before capitals; Mistral's Tekken has no contractions."""

_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3")

_LONGEST = 1024  # the work on a token grows with the square of its length

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Values of ``tokenizer.ggml.token_type`` (of them UNKNOWN and CONTROL never show in text)."""


def tokenizer_from_metadata(metadata: Mapping[str, Any], path: str) -> Tokenizer:
    """Build the tokenizer that GGUF metadata describes.

    Raises:
        ValueError: its model or its pre-tokenizer is not supported, or a key is missing.
    """
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in builders:
        raise ValueError(
            f"{path}: unsupported tokenizer model {kind!r}; supported are {', '.join(builders)}"
        )
    try:
        return _build(builders[kind], _checked(metadata), path)
    except ValueError:
        raise
    except Exception as error:  # the library below raises nothing narrower
        raise ValueError(
            f"{path}: the tokenizer's metadata is incomplete or corrupt ({error!r}); fetch it again"
        ) from error


def _checked(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata with lists for arrays, of the types that they must have.

    Raises:
        KeyError, IndexError, TypeError: something is not there, or not what it should be.
    """
    checked = dict(metadata)
    for name, kind in (("tokens", str), ("merges", str), ("scores", float), ("token_type", int)):
        if (key := f"tokenizer.ggml.{name}") in metadata:
            found = metadata[key]
            checked[key] = found.tolist() if isinstance(found, np.ndarray) else found
            if not isinstance(found, list | np.ndarray) or {*map(type, checked[key])} - {kind}:
                raise TypeError(f"{key} is no list of {kind.__name__}")
    size = len(checked["tokenizer.ggml.tokens"])
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            if type(value) is not int:
                raise TypeError(f"{key} is {value!r}")
            if not 0 <= value < size:
                raise IndexError(f"{key} is {value} of {size} tokens")
    if not isinstance(metadata.get("tokenizer.chat_template", ""), str):
        raise TypeError("tokenizer.chat_template is no string")
    return checked


def _build(builder: Callable[..., Backend], metadata: Mapping[str, Any], path: str) -> Tokenizer:
    backend, tokens = builder(metadata, path), metadata["tokenizer.ggml.tokens"]
    _add_special_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    _add_begin_and_end(backend, metadata, tokens)
    stops = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return Tokenizer(
        backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=_special_tokens(metadata, tokens),
        stop_ids=[index for index in stops if index is not None],
    )


def _pre_tokenizer(kind: str, path: str) -> pre_tokenizers.PreTokenizer:
    """Return how text is cut into words before any merge, by llama.cpp's name for it."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    cl100k = _split_then_bytes(_WORDS.replace("{DIGITS}", "{1,3}"))
    qwen = _split_then_bytes(_WORDS.replace("{DIGITS}", ""))
    o200k = _CASED.replace("{DIGITS}", "{1,3}").replace("SUFFIX", f"{_CONTRACTIONS}?")
    known = {
        **dict.fromkeys(("gpt-2", "olmo", "phi-2"), gpt2),
        **dict.fromkeys(("smollm", "starcoder"), digits),
        **dict.fromkeys((*_LLAMA3, "smaug-bpe", "dbrx"), cl100k),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), qwen),
        "gpt-4o": _split_then_bytes(o200k),
        "tekken": _split_then_bytes(_CASED.replace("{DIGITS}", "").replace("SUFFIX", "")),
    }
    if kind not in known:
        raise ValueError(
            f"{path}: unsupported pre-tokenizer {kind!r}; supported are {', '.join(known)}"
        )
    return known[kind]


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _byte_level_bpe(metadata: Mapping[str, Any], path: str) -> Backend:
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [_merge(text, vocabulary, path) for text in metadata["tokenizer.ggml.merges"]]
    # These take a word that is in the vocabulary as it is, whatever the merges would make.
    model = models.BPE(vocabulary, merges, ignore_merges=pre in (*_LLAMA3, "tekken"))
    backend = Backend(model)
    backend.pre_tokenizer = _pre_tokenizer(pre, path)
    if pre == "qwen2" or metadata.get("general.architecture") == "gptneox":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _merge(text: str, vocabulary: Mapping[str, int], path: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    # Unchecked, a merge that makes no token aborts the library.
    if not {left, right, left + right} <= vocabulary.keys():
        raise ValueError(f"{path}: merge {text!r} is not within the vocabulary; fetch it again")
    return left, right


def _sentencepiece_bpe(metadata: Mapping[str, Any], path: str) -> Backend:
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    if str(metadata.get("general.architecture")).startswith("gemma"):
        # It spells runs of spaces as such, but text is looked up with their stand-ins; and merges
        # have the order of the vocabulary, not that of the scores.
        tokens = [token.replace(" ", "▁") if not token.strip(" ") else token for token in tokens]
        scores = range(0, -len(tokens), -1)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = merges_from_scores(vocabulary, scores)
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = Backend(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def merges_from_scores(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list:
    """Recover BPE merges: every split of a token into two tokens, best score first.

    >>> merges_from_scores({"a": 0, "b": 1, "ab": 2, "abb": 3}, [0.0, 0.0, -1.0, -2.0])
    [('a', 'b'), ('ab', 'b')]

    Raises:
        ValueError: a token is longer than any vocabulary has.
    """
    if (longest := max(map(len, vocabulary), default=0)) > _LONGEST:
        raise ValueError(f"a token of {longest} characters; at most {_LONGEST} are read")
    splits = []
    for token in sorted(vocabulary, key=lambda token: -scores[vocabulary[token]]):
        pairs = [
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
        ]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        splits += pairs
    return splits


def _add_special_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    known = backend.get_vocab()
    by_type = [pair for pair in zip(tokens, types, strict=False) if pair[0] in known]
    hidden = [token for token, kind in by_type if kind in (UNKNOWN, CONTROL)]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in hidden])
    shown = [token for token, kind in by_type if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in shown])


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {ours: metadata.get(f"tokenizer.ggml.{name}_token_id") for name, ours in names.items()}
    return {f"{name}_token": tokens[int(i)] for name, i in ids.items() if i is not None}


def _add_begin_and_end(
    backend: Backend, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> None:
    """Make ``encode`` add the tokens that the model was trained to see around a text."""
    pre = metadata.get("tokenizer.ggml.pre")
    is_llama = metadata["tokenizer.ggml.model"] == "llama" or pre in (*_LLAMA3, "tekken")
    template, special = ["$A"], []
    for name, default, place in (("bos", is_llama, 0), ("eos", False, 2)):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default) and index is not None:
            # By a name of its own: a token's text could be a command of the template.
            template.insert(place, name)
            special.append({"id": name, "ids": [index], "tokens": [tokens[index]]})
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
