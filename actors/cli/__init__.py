"""The command line, ``tierlog``.

Exit codes: 0 done, 1 failed (one line ``error: ...`` on stderr), 2 wrong usage, 130 interrupted, 141 the
reader of the output is gone. Commands that read own nothing and fence nothing. Heavy imports are inside the
commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import typer

from ..kernel.process_memory import skip_final_collection
from .app import app
from .interrupts import INTERRUPTED, end_at_once
from .running import print_error

USAGE = 2

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""The base class of all usage errors; only its subclass has a public name in all versions of typer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``arguments`` are without the program's name; default: those
    of the process."""
    # An error is one line on stderr; the store's log would be printed beside it.
    logging.getLogger("tierlog").addHandler(logging.NullHandler())
    if arguments is not None:
        return run_app(app, arguments or ["--help"], "tierlog")

    end_at_once()  # until a command owns something
    code = run_app(app, sys.argv[1:] or ["--help"], "tierlog")
    skip_final_collection()
    return code


def run_app(app: typer.Typer, arguments: Sequence[str], program: str) -> int:
    """Run a typer application and return its exit code. A usage error is one line on stderr and exit code
    2."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name=program, standalone_mode=False)
    except UsageError as error:
        program = error.ctx.command_path if error.ctx is not None else program
        print_error(f"{error.format_message().strip().rstrip('.')}; see `{program} --help`")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0
