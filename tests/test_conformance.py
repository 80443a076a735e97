"""The shipped targets and drafters pass the suites that others can run on theirs.

Each check of the drafters' suite runs under every verifier that may judge the drafter, greedy and
at temperature 1. All of it is the product that ``make slow`` runs; CI runs each drafter once.
"""

import jax
import jax.numpy as jnp
import pytest

from specjax.adaptive import Adaptive
from specjax.datastore import build
from specjax.drafters import (
    DraftModel,
    DraftTree,
    EarlyExit,
    LayerSkip,
    Lookahead,
    NGram,
    Retrieval,
    Suffix,
    first_of,
)
from specjax.stopping import Entropy
from specjax.testing import TableLM, tiny_lm
from specjax.testing.drafter_checks import DRAFTER_CHECKS
from specjax.testing.target_checks import TARGET_CHECKS

TABLE = TableLM.random(jax.random.key(0), 4)
DRAFT = TableLM.random(jax.random.key(1), 4)
STORE = build([[1, 0, 1, 2, 0, 1, 0, 3], [2, 2, 1, 0, 1, 1]], vocab_size=4)
TARGETS = {"table": TABLE, "tiny": tiny_lm(jax.random.key(0))}
COSTS = jnp.asarray([1.0, 1.2, 1.3, 1.4])
CHAINS = {
    "ngram": NGram(3),
    "suffix": Suffix(3, max_match=3),
    "suffix-store": Suffix(3, max_match=3, store=STORE),
    "retrieval": Retrieval(STORE, 3, min_match=1),
    "draft-model": DraftModel(DRAFT, 3),
    "early-exit": EarlyExit(1, 3),
    "layer-skip": LayerSkip((0, 2), 3),
    "first-of": first_of(NGram(3, min_ngram=2), DraftModel(DRAFT, 2)),
    "first-of-exit": first_of(NGram(3, min_ngram=2), EarlyExit(2, 2)),
}
TREES = {
    "suffix-tree": Suffix(3, max_match=3, num_nodes=6),
    "retrieval-tree": Retrieval(STORE, 3, num_nodes=6, min_match=1),
    "draft-tree": DraftTree(DRAFT, (2, 2, 1)),
    "lookahead": Lookahead(ngram=3, window=3, num_candidates=2, pool=8),
    "first-of-tree": first_of(NGram(3, min_ngram=2), DraftTree(DRAFT, (2, 1))),
    "first-of-lookahead": first_of(
        NGram(2, min_ngram=2), Lookahead(ngram=3, window=2, num_candidates=1, pool=4)
    ),
}
DRAFTERS = CHAINS | TREES
QUICK = {
    "ngram": {c.__name__ for c in DRAFTER_CHECKS} - {"law_is_kept"},
    "draft-model": {c.__name__ for c in DRAFTER_CHECKS} - {"law_is_kept"},
    "suffix": {"coupled_is_plain_sampling"},
    "retrieval-tree": {"coupled_is_plain_sampling"},
    "early-exit": {"coupled_is_plain_sampling"},
    "layer-skip": {"cache_equals_a_fresh_prefill"},
    "draft-tree": {"coupled_is_plain_sampling"},
    "lookahead": {"coupled_is_plain_sampling"},
    "first-of-exit": {"coupled_is_plain_sampling"},
}
"""What CI runs; tests/test_law.py and tests/test_draft_tree.py have laws, with more rows."""

ADAPTING = {
    "policy": {"policy": Adaptive(COSTS, draft_cost=0.3, exploration=0.5), "widths": (0, 1)},
    "stopping": {"stopping": Entropy(0.4, 0.5), "widths": (0, 2)},
}


@pytest.mark.parametrize("check", TARGET_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_target(target, check):
    check(target)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(
            name,
            check,
            marks=() if check.__name__ in QUICK.get(name, ()) else pytest.mark.slow,
            id=f"{name}-{check.__name__}",
        )
        for name in DRAFTERS
        for check in DRAFTER_CHECKS
    ],
)
def test_drafter(name, check):
    check(DRAFTERS[name], TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("parts", ADAPTING.values(), ids=ADAPTING)
@pytest.mark.parametrize("check", DRAFTER_CHECKS, ids=lambda check: check.__name__)
def test_a_draft_model_whose_lengths_adapt(check, parts):
    check(DRAFTERS["draft-model"], TABLE, **parts)
