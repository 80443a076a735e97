"""Gemma 2: norms before and after, capped scores and logits, every other layer local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.models import gemma
from specjax.models.config import Config, LayerKind
from specjax.models.published import LAYER, head_size, layer_types, table_of
from specjax.models.rope import Rope
from specjax.models.table import Table

ARCHITECTURES = ("Gemma2ForCausalLM",)

_DEFAULTS = gemma.DEFAULTS | {
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def config_from_hf(hf: Mapping[str, Any]) -> Config:
    """Read a checkpoint's config.json.

    Raises:
        ValueError: a field is missing, or asks for something that the decoder does not do.
    """
    hf = {**_DEFAULTS, **hf}
    rope = Rope.from_hf(hf, head_size(hf))
    local = layer_types(hf, lambda index: index % 2 == 0)
    return read_sandwich(hf, [(rope, hf["sliding_window"] if one else None) for one in local])


def read_sandwich(
    hf: Mapping[str, Any], kinds: Sequence[tuple[Rope, int | None]], **changes: Any
) -> Config:
    """What Gemma 2 and 3 share: norms on both sides, a scale and perhaps caps of their own."""
    return gemma.read_gemma(
        hf,
        layers=tuple(LayerKind(rope, window) for rope, window in kinds),
        norm_after=True,
        attention_scale=hf["query_pre_attn_scalar"] ** -0.5,
        attention_cap=hf.get("attn_logit_softcapping"),
        logit_cap=hf.get("final_logit_softcapping"),
        **changes,
    )


NAMES = {
    "layers.*.attention_post_norm.scale": LAYER + "post_attention_layernorm.weight",
    "layers.*.mlp_norm.scale": LAYER + "pre_feedforward_layernorm.weight",
    "layers.*.mlp_post_norm.scale": LAYER + "post_feedforward_layernorm.weight",
}


def weight_table(config: Config) -> Table:
    """Where a checkpoint of this family keeps each weight."""
    return table_of(config, NAMES)
