"""Whether a target and a drafter speculate exactly, on the user's own models and prompts.

Identities and a test of the law, each with a verdict and figures; ``specjax check`` prints them.
"""

from specjax.check.pair import check_pair
from specjax.check.report import Finding, Report

__all__ = ["Finding", "Report", "check_pair"]
