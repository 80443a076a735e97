"""llama.cpp, by way of llama-cpp-python, with the weights of one of our GGUF files in float32.

The loop is here, over llama.cpp's own passes and the package's own prompt lookup, because its
``Llama.generate`` computes the logits of the whole prompt as soon as it may draft, and keeps the
prompt of the call before.
"""

from __future__ import annotations

import importlib
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from specjax.bench.peers.float32_gguf import write_float32
from specjax.bench.peers.peer import NGRAM
from specjax.io.gguf import GGUFCheckpoint

_BATCH = 512  # positions a pass: llama.cpp's default


class LlamaCppPeer:
    """A model of llama.cpp on the CPU; weights and the KV cache are float32."""

    name = "llama-cpp"

    def __init__(self, path: Path, *, num_threads: int, max_length: int) -> None:
        self.max_length = max_length
        # It has no types, and whoever checks ours may not have it.
        self._library: Any = importlib.import_module("llama_cpp")
        drafting: Any = importlib.import_module("llama_cpp.llama_speculative")
        self._lookup = drafting.LlamaPromptLookupDecoding
        self._llama = self._library.Llama(
            str(path),
            n_ctx=max_length,
            n_batch=_BATCH,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            type_k=self._library.GGML_TYPE_F32,
            type_v=self._library.GGML_TYPE_F32,
            swa_full=True,  # a window's cache cannot drop refused drafts otherwise
            use_mmap=False,  # the file may be deleted then
            verbose=False,
        )
        self._memory = self._library.llama_get_memory(self._llama.ctx)
        self._batch = self._library.llama_batch_init(_BATCH, 0, 1)
        weakref.finalize(self, self._library.llama_batch_free, self._batch)

    def generate(self, prompt: list[int], num: int, draft_length: int | None) -> list[int]:
        end = len(prompt) + num
        if end > self.max_length:
            raise ValueError(
                f"prompt: {len(prompt)} tokens and {num} new ones are more than max_length "
                f"{self.max_length}; load the peer with a larger one"
            )
        self._library.llama_memory_clear(self._memory, True)
        text, length = np.empty(end, np.intc), len(prompt)
        text[:length] = prompt
        text[length] = self._prefill(text[:length])
        length += 1
        while length < end:
            drafted = min(draft_length or 0, end - length - 1, _BATCH - 1)
            length = self._round(text, length, drafted)
        return text[len(prompt) :].tolist()

    def _prefill(self, prompt: np.ndarray) -> int:
        """Read the prompt, some positions a pass, and return the token after it."""
        following = np.empty(0, np.intc)
        for start in range(0, len(prompt), _BATCH):
            following = self._pass(prompt[start : start + _BATCH], start, all_logits=False)
        return int(following[-1])

    def _round(self, text: np.ndarray, length: int, num_drafted: int) -> int:
        """Append the drafts that are right and one token more; return the new length."""
        draft = text[:0]
        if num_drafted:
            lookup = self._lookup(max_ngram_size=NGRAM, num_pred_tokens=num_drafted)
            draft = lookup(text[:length])
        inputs = np.append(text[length - 1 : length], draft)
        chosen = self._pass(inputs, length - 1, all_logits=True)
        agreed = int(np.cumprod(chosen[:-1] == draft).sum())
        text[length : length + agreed + 1] = chosen[: agreed + 1]
        length += agreed + 1
        if agreed < len(draft):
            self._library.llama_memory_seq_rm(self._memory, 0, length - 1, -1)
        return length

    def _pass(self, tokens: np.ndarray, start: int, *, all_logits: bool) -> np.ndarray:
        """The most probable token after each of ``tokens``, or after the last alone."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens.tolist()):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        if status := self._library.llama_decode(self._llama.ctx, batch):
            raise RuntimeError(f"llama.cpp could not decode: status {status}")
        rows = len(tokens) if all_logits else 1
        logits = self._library.llama_get_logits(self._llama.ctx)
        return np.ctypeslib.as_array(logits, shape=(rows, self._llama.n_vocab())).argmax(-1)


def load(checkpoint: Any, *, num_threads: int, max_length: int) -> LlamaCppPeer:
    """Load what a GGUF file holds; its float32 copy exists only while it is read.

    Raises:
        ValueError: the checkpoint is no GGUF file.
        OSError: the folder for temporary files is full (``TMPDIR`` names another).
    """
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise ValueError(
            "--peer llama-cpp: reads GGUF files only; give the target as a .gguf file "
            "(convert_hf_to_gguf.py of llama.cpp makes one), or take --peer transformers"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float32.gguf"
        write_float32(checkpoint.path, path)
        return LlamaCppPeer(path, num_threads=num_threads, max_length=max_length)
