"""The tokenizer inside a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from specjax.io.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How tiktoken's cl100k splits text; Llama 3 and Qwen 2 differ in how many digits make a word."""

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
        return _build(builders[kind], metadata, path)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{path}: the tokenizer's metadata is incomplete or corrupt ({error!r}); fetch it again"
        ) from error


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
    known = {
        "gpt-2": gpt2,
        "smollm": digits,
        "starcoder": digits,
        "llama-bpe": _split_then_bytes(_WORDS.replace("{DIGITS}", "{1,3}")),
        "qwen2": _split_then_bytes(_WORDS.replace("{DIGITS}", "")),
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
    # Llama 3 takes a word that is in the vocabulary as it is, whatever the merges would make.
    model = models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe")
    backend = Backend(model)
    backend.pre_tokenizer = _pre_tokenizer(pre, path)
    backend.decoder = decoders.ByteLevel()
    return backend


def _merge(text: str, vocabulary: Mapping[str, int], path: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    # Unchecked, a merge that makes no token aborts the library.
    if not {left, right, left + right} <= vocabulary.keys():
        raise ValueError(f"{path}: merge {text!r} is not within the vocabulary; fetch it again")
    return left, right


def _sentencepiece_bpe(metadata: Mapping[str, Any], path: str) -> Backend:
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = merges_from_scores(vocabulary, metadata["tokenizer.ggml.scores"])
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
    """
    found = []
    for token, index in vocabulary.items():
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(-scores[index], pair) for pair in known]
    found.sort(key=lambda entry: entry[0])  # stable: equal scores keep the vocabulary's order
    return [pair for _, pair in found]


def _add_special_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    by_type = list(zip(tokens, types, strict=False))
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
    is_llama = metadata["tokenizer.ggml.model"] == "llama"
    template, special = ["$A"], []
    for name, default, place in (("bos", is_llama, 0), ("eos", False, 2)):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default) and index is not None:
            template.insert(place, tokens[int(index)])
            special.append((tokens[int(index)], index))
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
