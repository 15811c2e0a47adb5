"""Where a store is, as users write it: a data folder of one machine, or a place that all machines reach.
Needs no client, so that an argument can be checked without one."""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from ...storage_backends.base.errors import InvalidArgument
from ...storage_backends.chunks.s3_location import SCHEME as BUCKET
from ...storage_backends.chunks.s3_location import S3Location, parse_location
from .paths import StoreFolder, check_path

BOOKKEEPER = "bookkeeper://"
_DEFAULT_PORT = 2181
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_ONE_SLASH = re.compile(r"(s3|bookkeeper):/(?!/)")
# Compiled at their first use, as few openings need them.
_SERVER = r"([a-zA-Z0-9_.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::([0-9]{1,5}))?"
_PATH = r"(?:/[a-zA-Z0-9_.$#=-]+)+"
_PATH_MAX = 400
_SERVERS_MAX = 16
_NO_STORE = {"ledgers", "zookeeper"}
"""Where BookKeeper and ZooKeeper have their own records, unless they are configured otherwise."""


class BookKeeperLocation(Struct, frozen=True):
    servers: tuple[str, ...]
    """Of ZooKeeper, each as ``NAME:PORT``."""
    path: str
    """In ZooKeeper; begins with a slash, and does not end with one."""

    def __str__(self) -> str:
        return f"{BOOKKEEPER}{','.join(self.servers)}{self.path}"


SharedLocation: TypeAlias = S3Location | BookKeeperLocation
"""Of a store that is as a whole where all machines reach it."""


def store_place(path: object) -> StoreFolder | SharedLocation:
    """What ``path`` names, which need not exist. Raises ``InvalidArgument``."""
    return shared_location(path) or check_path(path)


def is_shared(location: str) -> bool:
    """Whether ``location``, which is well-formed, is of a place that all machines reach."""
    return location.startswith((BUCKET, BOOKKEEPER))


def shared_location(path: object) -> SharedLocation | None:
    """The location that ``path`` names; None if it is a data folder. Raises ``InvalidArgument`` if it is
    malformed."""
    if isinstance(path, str) and (found := _ONE_SLASH.match(path)):
        raise InvalidArgument(f"{path[:80]!r} has one slash too few: write {found[1]}://")
    if not isinstance(path, str) or not (scheme := _SCHEME.match(path)):
        return None
    if scheme[0] == BUCKET:
        return parse_location(path)
    if scheme[0] == BOOKKEEPER:
        return parse_bookkeeper(path)
    raise InvalidArgument(
        f"{scheme[0]} is not where a store can be: name a data folder, s3://BUCKET/PREFIX or "
        f"bookkeeper://ZOOKEEPER:PORT/PATH"
    )


def parse_bookkeeper(text: str) -> BookKeeperLocation:
    """Parse ``bookkeeper://NAME:PORT[,NAME:PORT...]/PATH``. Raises ``InvalidArgument``."""
    if "@" in text:
        # Not shown: it may be a password.
        raise InvalidArgument(
            "a store on BookKeeper has no user name or password in its name: write "
            "bookkeeper://ZOOKEEPER:PORT/PATH"
        )
    authority, slash, rest = text.removeprefix(BOOKKEEPER).partition("/")
    path = f"{slash}{rest}".rstrip("/")
    servers = [_server(each) for each in authority.split(",")]
    names = path.split("/")[1:]
    if not all(servers) or len(servers) > _SERVERS_MAX or not _is_path(path, names):
        raise InvalidArgument(
            f"{text[:80]!r} is not a store on BookKeeper: write bookkeeper://NAME:PORT[,NAME:PORT...]/PATH, "
            f"with the servers of ZooKeeper and a path of letters, digits, '.', '_', '$', '#', '=', '-' and "
            f"'/', at most {_PATH_MAX} of them"
        )
    if names[0] in _NO_STORE:
        raise InvalidArgument(
            f"/{names[0]} is where BookKeeper or ZooKeeper has its own records: name another path, such as "
            f"{BOOKKEEPER}{authority}/tierlog/{names[-1]}"
        )
    return BookKeeperLocation(tuple(servers), path)


def _server(text: str) -> str:
    """With its port; empty if it is malformed."""
    found = re.fullmatch(_SERVER, text)
    port = int(found[2] or _DEFAULT_PORT) if found else 0
    return f"{found[1]}:{port}" if found and 0 < port <= 65_535 else ""


def _is_path(path: str, names: list[str]) -> bool:
    # ZooKeeper refuses the names that file systems have for a folder itself and the one above.
    return bool(re.fullmatch(_PATH, path)) and len(path) <= _PATH_MAX and not {".", ".."} & set(names)
