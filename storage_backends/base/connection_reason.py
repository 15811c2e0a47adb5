"""Why there is no connection, in the system's own words, whichever library asked for it."""

from __future__ import annotations

import os
import socket
import ssl


def connection_reason(error: BaseException) -> str:
    """Such as "Connection refused", which libraries hide in a cause."""
    causes, cause = [error], error.__cause__ or error.__context__
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for each in causes:
        if isinstance(each, socket.gaierror) and each.strerror:
            return each.strerror
    for each in causes:
        # Of TLS the numbers are other ones, and so are those of names that were not found.
        if isinstance(each, OSError) and not isinstance(each, ssl.SSLError) and each.errno and each.errno > 0:
            return os.strerror(each.errno)
    return str(error) or type(error).__name__
