"""Asking whether a command may do what cannot be undone."""

from __future__ import annotations

import sys

import typer

from .running import fail


def check_agreed(question: str, *, asks: bool, facts: str = "") -> None:
    """Ask on the terminal, unless ``asks`` is False. No answer, from a script's stdin at its end, is no
    agreement. ``facts``: what whoever is not asked has to know too."""
    try:
        # On stderr: stdout may be a pipe.
        if asks and sys.stdin.isatty():
            if typer.confirm(question, err=True):
                return
        elif asks and (answer := sys.stdin.readline()):
            sys.stderr.write(f"{question} {answer.rstrip()}\n")
            if answer.strip().lower() in ("y", "yes"):
                return
        else:
            asks = False  # A script asks nobody.
    except typer.Abort:
        sys.stderr.write("\n")
        asks = False
    before = f"{facts}; " if facts else ""
    fail("nothing was confirmed" if asks else f"{before}not confirmed: add --yes")
