"""``python -m simulation``, as ``scripts/simulate`` runs it.

Only the program itself does anything here: worker processes import this module too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from tierlog.actors.cli import run_app

from .command import simulate


def main(arguments: Sequence[str]) -> int:
    """Run the simulator with these arguments; returns the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command()(simulate)
    return run_app(app, arguments, "simulate")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
