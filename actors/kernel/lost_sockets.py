"""A connection that was reset before it was used, on uvloop.

uvloop (0.23) takes the socket of such a connection away, and its transport has None for it. anyio (4.16) asks
it for its family and its peer all the same, whatever attribute of the stream is wanted, and httpcore (1.0)
wants one when it has connected and when it examines an idle connection. What arrives is an ``AttributeError``
of None, raised in anyio. Any other one is a mistake in a program.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def lost_sockets() -> Generator[None]:
    """Raises ``ConnectionResetError`` for it."""
    try:
        yield
    except AttributeError as error:
        if error.obj is not None or not _module(error).startswith("anyio."):
            raise
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


def _module(error: BaseException) -> str:
    """The one that raised it."""
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return "" if raised is None else str(raised.tb_frame.f_globals.get("__name__", ""))
