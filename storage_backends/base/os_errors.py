"""What the operating system refused, in one sentence that says what to do."""

from __future__ import annotations

import errno
import os
import pwd

NO_PERMISSION = (errno.EACCES, errno.EPERM)
"""The error numbers of a missing permission."""
NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
"""The error numbers of a call that the file system does not have."""
_NO_LINKS = "the file system has no hard links, which tierlog needs: name a folder on another one"
_READ_ONLY = "it is mounted read-only: mount it for writing, or name another folder"
_MORE_FILES = "this process may open no more: raise the limit (`ulimit -n`)"
_LARGER_FILES = "raise the limit of file sizes (`ulimit -f`), or use another file system"
_GRANT = "run as its owner, or give this user access to it and to the folders above it (chown, chmod)"


def explain(error: OSError, path: str = "") -> str:
    """``error`` with its path and its reason. ``path`` is for an error without one of its own; a relative one
    does not count, because calls below an open folder see only a part of the path."""
    known = error.filename if isinstance(error.filename, str) else ""
    where = known if known.startswith("/") else path or known
    return f"{where}: {reason_of(error)}" if where else reason_of(error)


def reason_of(error: OSError) -> str:
    """The reason, and for a missing permission the user and what to change."""
    reason = error.strerror or str(error)
    # Of a link, which has two names; some file systems call that a missing permission.
    if error.filename2 is not None and error.errno in (errno.EPERM, *NOT_SUPPORTED):
        return f"{reason}; {_NO_LINKS}"
    if error.errno in NO_PERMISSION:
        return f"{reason} for {_user()}; {_GRANT}"
    advice = {errno.EROFS: _READ_ONLY, errno.EMFILE: _MORE_FILES, errno.EFBIG: _LARGER_FILES}.get(
        error.errno or 0
    )
    return f"{reason}; {advice}" if advice else reason


def _user() -> str:
    uid = os.geteuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:  # containers often run as a user that has no name
        return f"user {uid}"
