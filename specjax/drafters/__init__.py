"""Where drafts come from. Each drafter is one file behind ``specjax.protocols.Drafter``."""

from specjax.drafters.chain import Chain
from specjax.drafters.draft_model import DraftModel
from specjax.drafters.draft_tree import DraftTree
from specjax.drafters.early_exit import EarlyExit
from specjax.drafters.first_of import FirstOf, first_of
from specjax.drafters.forced import Forced
from specjax.drafters.layer_skip import LayerSkip
from specjax.drafters.lookahead import Lookahead
from specjax.drafters.ngram import NGram
from specjax.drafters.plain import Plain
from specjax.drafters.retrieval import Retrieval
from specjax.drafters.suffix import Suffix

__all__ = [
    "Chain",
    "DraftModel",
    "DraftTree",
    "EarlyExit",
    "FirstOf",
    "Forced",
    "LayerSkip",
    "Lookahead",
    "NGram",
    "Plain",
    "Retrieval",
    "Suffix",
    "first_of",
]
