"""What an argument of the form ``module:attribute`` names: a drafter or verifier of one's own."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any

FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_import(argument: str) -> bool:
    """Whether an argument names an attribute of a module.

    >>> is_import("mine.drafters:Fast"), is_import("HuggingFaceTB/SmolLM2-135M"), is_import("ngram")
    (True, False, False)
    """
    return FORM.fullmatch(argument) is not None


def imported(argument: str, flag: str) -> Any:
    """Import it; modules in the current folder are found, too.

    Raises:
        ValueError: there is no such module or attribute.
    """
    module, attribute = argument.split(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{flag}: cannot import {argument}: {error}") from error
