"""Where drafts come from. Each drafter is one file behind ``specjax.protocols.Drafter``."""

from specjax.drafters.chain import Chain
from specjax.drafters.draft_model import DraftModel
from specjax.drafters.first_of import FirstOf, first_of
from specjax.drafters.forced import Forced
from specjax.drafters.ngram import NGram
from specjax.drafters.plain import Plain

__all__ = ["Chain", "DraftModel", "FirstOf", "Forced", "NGram", "Plain", "first_of"]
