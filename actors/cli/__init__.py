"""The command line: ``tierlog``.

Owns: the entry point, and how a mistake on the command line is told. Does not own: any rule of the store;
commands check nothing that the store's own doors check. ``segment_read.py``, ``segment_write.py``,
``transactions.py`` and ``folder.py`` hold the commands, ``running.py`` how one is carried out,
``interrupts.py`` what Ctrl-C does.

Exit codes: 0 done, 1 refused or failed (one line ``error: ...`` on stderr), 2 wrong usage, 130 interrupted,
141 nobody reads the output. Reading commands own nothing and fence nobody. Heavy imports happen
inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import typer

from ..kernel.process_memory import leave_the_rest_to_the_system
from .app import app
from .interrupts import INTERRUPTED, end_at_once
from .running import complain

USAGE = 2

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""The parent of every mistake in the arguments; only its child has a public name in all versions of typer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code. ``arguments`` without the program's name, default: this
    process's."""
    # Errors are told in one line; the store's own events would stand beside it.
    logging.getLogger("tierlog").addHandler(logging.NullHandler())
    if arguments is not None:
        return run_app(app, arguments or ["--help"], "tierlog")

    end_at_once()  # Until a command owns something.
    code = run_app(app, sys.argv[1:] or ["--help"], "tierlog")
    leave_the_rest_to_the_system()
    return code


def run_app(app: typer.Typer, arguments: Sequence[str], program: str) -> int:
    """Run a typer application; returns the exit code. A wrong option is one line on stderr and exit code
    2."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name=program, standalone_mode=False)
    except UsageError as error:
        return _complain_about_usage(error, program)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _complain_about_usage(error: typer.BadParameter, program: str) -> int:
    program = error.ctx.command_path if error.ctx is not None else program
    complain(f"{error.format_message().strip().rstrip('.')}; see `{program} --help`")
    return USAGE
