"""The command ``specjax``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from specjax.cli.arguments import build_parser

INTERRUPTED = 130
"""128 + SIGINT, as a shell reports a program that Ctrl-C ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (failed), 2 (bad argument), or 130.

    Errors are one line on standard error, without a traceback.
    """
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
        return import_module(f"specjax.cli.{args.command}").run(args)
    except SystemExit as leave:  # argparse: 0 after --help, 2 after a bad argument
        return int(leave.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        return _fail(error, 2)
    except OSError as error:
        return _fail(error, 1)


def _fail(error: Exception, status: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status
