"""transformers on torch, with the weights of one of our checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specjax.bench.peers.peer import NGRAM
from specjax.io import Checkpoint


class TransformersPeer:
    """A model of transformers, decoding with its own ``generate``; the cache is float32, too."""

    name = "transformers"

    def __init__(self, model: Any, num_threads: int) -> None:
        self.model, self.num_threads = model, num_threads

    def generate(self, prompt: list[int], num: int, draft_length: int | None) -> list[int]:
        lookup = {"prompt_lookup_num_tokens": draft_length, "max_matching_ngram_size": NGRAM}
        ids = torch.tensor([prompt])
        torch.set_num_threads(self.num_threads)  # of the whole process, so others may change it
        with torch.no_grad():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num,
                eos_token_id=None,  # then nothing ends it before, and nothing is suppressed
                pad_token_id=0,
                **({} if draft_length is None else lookup),
            )
        return output[0, len(prompt) :].tolist()


def load(checkpoint: Checkpoint, *, num_threads: int, max_length: int) -> TransformersPeer:
    """Build the transformers model of a checkpoint in float32; its cache grows as it must.

    Raises:
        ValueError: the checkpoint has tensors that the transformers model has not.
    """
    del max_length
    return TransformersPeer(load_model(checkpoint), num_threads)


def load_model(checkpoint: Checkpoint) -> Any:
    """Build the model itself."""
    config = dict(checkpoint.config)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config), dtype=torch.float32
    )
    tensors = {
        name: torch.from_numpy(np.array(checkpoint.read(name), np.float32))
        for name in checkpoint.names()
    }
    # A tied head is not stored, so what is missing is no fault; what is left over is.
    if extra := model.load_state_dict(tensors, strict=False).unexpected_keys:
        raise ValueError(f"checkpoint: transformers has no place for {', '.join(extra)}")
    return model.float().eval()
