"""The command line, ``tierlog``.

Exit codes: 0 done, 1 failed (one line ``error: ...`` on stderr), also if stdout cannot be written, 2 wrong
usage, 130 interrupted, 141 the reader of the output is gone. Commands that read own nothing and fence
nothing. Heavy imports are inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import typer

from ..kernel.process_memory import skip_final_collection
from .app import app
from .interrupts import INTERRUPTED, end_at_once
from .output import BROKEN_PIPE, discard_stdout, reserve_standard_streams
from .running import print_error, report_os_error

USAGE = 2

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""The base class of all usage errors; only its subclass has a public name in all versions of typer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``arguments`` are without the program's name; default: those
    of the process."""
    # An error is one line on stderr; the store's log would be printed as well.
    logging.getLogger("tierlog").addHandler(logging.NullHandler())
    if arguments is not None:
        # Explicitly: click 8.2 ends `no_args_is_help` with exit code 2, earlier versions with 0.
        return run_app(app, arguments or ["--help"], "tierlog")

    end_at_once()  # until a command owns something
    reserve_standard_streams()
    code = run_app(app, sys.argv[1:] or ["--help"], "tierlog")
    # Imports alone leave 50,000 objects, which a last collection would traverse.
    skip_final_collection()
    return code


def run_app(app: typer.Typer, arguments: Sequence[str], program: str) -> int:
    """Run a typer application and return its exit code. A usage error is one line on stderr and exit code 2;
    a stdout that cannot be written is one line and exit code 1."""
    code = _run(app, arguments, program)
    try:
        # Python flushes at exit too, but a failure there is a traceback and exit code 120.
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        if code == 0:
            return report_os_error(error)
    return code


def _hide_flag_types(command: Any) -> None:
    """Flags take no value, but typer would show `<bool>` after them."""
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_bool_flag", False):
            parameter.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _hide_flag_types(each)


def _hint(error: Any) -> str:
    """Where an unknown option belongs that another command of the line takes."""
    option, context = getattr(error, "option_name", None), error.ctx
    if option is None or context is None:
        return ""
    if any(_takes(each, option) for each in getattr(context.command, "commands", {}).values()):
        return "; it belongs after the command"

    # Outwards: `tierlog serve --version` names an option of `tierlog`.
    while (context := context.parent) is not None:
        if option in _options(context.command):
            return "; it belongs before the command"
    return ""


def _takes(command: Any, option: str) -> bool:
    """Whether the command or one below it has the option."""
    below = getattr(command, "commands", {}).values()
    return option in _options(command) or any(_takes(each, option) for each in below)


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def _run(app: typer.Typer, arguments: Sequence[str], program: str) -> int:
    try:
        command = typer.main.get_command(app)
        if "--help" in arguments:
            _hide_flag_types(command)
        # In standalone mode click prints errors itself, in several lines, and ends the process.
        code = command.main(list(arguments), prog_name=program, standalone_mode=False)
    except UsageError as error:
        program = error.ctx.command_path if error.ctx is not None else program
        message = error.format_message().strip().rstrip(".")
        print_error(f"{message}{_hint(error)}; see `{program} --help`")
        return USAGE
    # `Abort`: Ctrl-C, or the end of stdin, at a question.
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return report_os_error(error)
    except SystemExit:  # from typer and rich, when the reader of a help page is gone
        return BROKEN_PIPE
    # The code of a `typer.Exit`; a command that ends by itself returns None.
    return code if isinstance(code, int) else 0
