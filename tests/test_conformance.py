"""The shipped targets and drafters pass the suites that others can run on theirs."""

import jax
import pytest

from specjax.drafters import DraftModel, NGram
from specjax.testing import TableLM, tiny_lm
from specjax.testing.drafter_checks import DRAFTER_CHECKS, law_is_kept
from specjax.testing.target_checks import TARGET_CHECKS

TABLE = TableLM.random(jax.random.key(0), 4)
TARGETS = {"table": TABLE, "tiny": tiny_lm(jax.random.key(0))}
DRAFTERS = {
    "ngram": NGram(3),
    "draft-model": DraftModel(TableLM.random(jax.random.key(1), 4), 3),
}


@pytest.mark.parametrize("check", TARGET_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_target(target, check):
    check(target)


@pytest.mark.parametrize(
    "check",
    [
        # tests/test_law.py checks the law of both, with more rows.
        pytest.param(
            check, marks=pytest.mark.slow if check is law_is_kept else (), id=check.__name__
        )
        for check in DRAFTER_CHECKS
    ],
)
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_drafter(drafter, check):
    check(drafter, TABLE)
