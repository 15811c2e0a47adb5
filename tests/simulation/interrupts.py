"""Ctrl-C in the simulator's command, which runs no event loop of its own."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def interrupt_once() -> None:
    """The next Ctrl-C raises ``KeyboardInterrupt``; further ones are ignored, so that the program can end in
    order."""
    signal.signal(signal.SIGINT, _raise_once)


def _raise_once(number: int, frame: FrameType | None) -> NoReturn:
    # Not SIG_IGN: Python prints a warning about a signal that arrived just before. And not the handler alone:
    # the interpreter's exit puts the default back, which ends the process by the signal.
    signal.signal(signal.SIGINT, _ignore)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt


def _ignore(number: int, frame: FrameType | None) -> None:
    """The program is already ending."""
