"""transformers on torch, with the weights of one of our checkpoints: a peer to measure against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specjax.io import Checkpoint


def load_peer(checkpoint: Checkpoint) -> Any:
    """Build the transformers model of a checkpoint in float32.

    Raises:
        ValueError: the checkpoint has tensors that the transformers model has not.
    """
    config = dict(checkpoint.config)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config)
    )
    tensors = {
        name: torch.from_numpy(np.array(checkpoint.read(name), np.float32))
        for name in checkpoint.names()
    }
    # A tied head is not stored, so what is missing is no fault; what is left over is.
    if extra := model.load_state_dict(tensors, strict=False).unexpected_keys:
        raise ValueError(f"checkpoint: transformers has no place for {', '.join(extra)}")
    return model.float().eval()


def generate(model: Any, prompt: Sequence[int], num: int) -> list[int]:
    """Decode exactly ``num`` tokens greedily with transformers' own ``generate``."""
    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num,
            min_new_tokens=num,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()
