"""The grammar of segment names, and the container of a name.

A name consists of parts joined by ``/``, of letters, digits and ``. _ - # = @ + ~ $ :``; no part is empty,
``.`` or ``..``; at most 255 UTF-8 bytes in all. Names under ``_system/`` are reserved. Names never become
file names, because storage keys contain the segment id (rule C2), so no name can escape the data folder.

The container is a stable hash of the name up to the first ``#``: ``app/events#part-7`` is in the same
container as ``app/events``, so that it can be merged into it.
"""

from __future__ import annotations

import re

from .checksum import crc32c
from .errors import InvalidArgument

NAME_BYTES_MAX = 255
SYSTEM_SCOPE = "_system/"
_PART = re.compile(r"[\w.\-#=@+~$:]+")


def check_segment_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless users may give a segment this name."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a segment name is a str, not {type(name).__name__}")

    if not name or len(name) > NAME_BYTES_MAX or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"a segment name has 1 to {NAME_BYTES_MAX} UTF-8 bytes, not "
            f"{len(name.encode('utf-8', 'surrogatepass'))}: {name[:40]!r}"
        )

    if name.startswith(SYSTEM_SCOPE) or name == SYSTEM_SCOPE[:-1]:
        raise InvalidArgument(f"{name!r}: names under {SYSTEM_SCOPE!r} are reserved for the store")

    for part in name.split("/"):
        if part in ("", ".", "..") or not _PART.fullmatch(part):
            raise InvalidArgument(
                f"bad segment name {name!r}: parts of letters, digits and . _ - # = @ + ~ $ : joined by "
                f"single '/', none '.' or '..'"
            )


def placement_key(name: str) -> str:
    """The part of a name that determines its container: everything before the first ``#``, or the whole name
    if it starts with one."""
    head = name.split("#", 1)[0]
    return head or name


def container_of(name: str, containers: int) -> int:
    """The container of ``name``, 0 to ``containers - 1``. Part of the store's format, so it never changes."""
    # The multiplication spreads the CRC's low bits; CRC32C alone keeps similar names close together.
    mixed = (crc32c(placement_key(name).encode()) * 0x9E3779B1) & 0xFFFFFFFF
    return (mixed * containers) >> 32
