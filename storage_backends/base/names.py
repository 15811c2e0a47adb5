"""The grammar of segment names, and which container a name belongs to.

A name is scopes and a segment joined by ``/``: parts of letters, digits and ``. _ - # = @ + ~ $ :``, none
empty, none ``.`` or ``..``, 255 UTF-8 bytes at most in all. Names under ``_system/`` are the store's own.
Names never become file names: storage keys carry the segment id (rule C2), so no name can escape the data
folder.

The container is a stable hash of the name up to the first ``#``: ``app/events#part-7`` lives with
``app/events``, so that it can be merged into it.
"""

from __future__ import annotations

import re

from .checksum import crc32c
from .errors import InvalidArgument

NAME_BYTES_MAX = 255
SYSTEM_SCOPE = "_system/"
_PART = re.compile(r"[\w.\-#=@+~$:]+")


def check_segment_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` is one a user may give a segment."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a segment name is a str, not {type(name).__name__}")

    if not name or len(name) > NAME_BYTES_MAX or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"a segment name has 1 to {NAME_BYTES_MAX} UTF-8 bytes, {name[:40]!r} has {len(name)} characters"
        )

    if name.startswith(SYSTEM_SCOPE) or name == SYSTEM_SCOPE[:-1]:
        raise InvalidArgument(f"{name!r}: names under {SYSTEM_SCOPE!r} are the store's own")

    for part in name.split("/"):
        if part in ("", ".", "..") or not _PART.fullmatch(part):
            raise InvalidArgument(
                f"bad segment name {name!r}: parts of letters, digits and . _ - # = @ + ~ $ : joined by "
                f"single '/', none '.' or '..'"
            )


def placement_key(name: str) -> str:
    """The part of a name that decides its container: everything before the first ``#`` (the whole name if it
    starts with one)."""
    head = name.split("#", 1)[0]
    return head or name


def container_of(name: str, containers: int) -> int:
    """The container, 0 to ``containers - 1``, that hosts ``name``. Stable for ever: it is part of the store's
    format."""
    # A multiply after the CRC spreads its low bits; CRC32C alone keeps similar names close.
    mixed = (crc32c(placement_key(name).encode()) * 0x9E3779B1) & 0xFFFFFFFF
    return (mixed * containers) >> 32
