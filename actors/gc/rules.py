"""What is garbage, and when it may be deleted (PDP-53, rules G1, G2 and G6). Pure.

A chunk is garbage if durable metadata has no record of it and the transaction that could add one has ended.
Garbage stays garbage: names are never used twice and no owner adds another's chunk. So a late delete does no
harm."""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Struct

from ...journal.manifest.element import CONTAINERS_PREFIX
from ...storage_backends.base.codec import DecodeError, hex_number


class Garbage(Struct, frozen=True):
    """A name that nothing refers to, and what its deletion waits for."""

    name: str
    due: float
    """Monotonic seconds of this ownership. The delay protects readers that still have the name."""
    since: float = 0.0
    """When it was released or found, as ``due``."""
    error: str = ""
    """Why its newest attempt failed."""
    is_proven: bool = False
    """Whether an element of this owner has counted since it was found to be garbage (rule J9)."""


class ChunkOrigin(Struct, frozen=True):
    """What a chunk's name contains: its segment, the epoch of the owner that created it, and the segment
    offset of its first byte."""

    segment: int
    epoch: int
    offset: int


def parse_chunk_name(name: str) -> ChunkOrigin | None:
    """The origin of ``containers/<container>/<segment>/<epoch>-<offset>-<id>``. None for a name of any other
    form, also one that ends so, as the chunks of a store that is inside this one's: that is never garbage
    unless a record names it."""
    try:
        containers, _, segment, last = name.split("/")
        epoch, offset, _ = last.split("-")
        origin = ChunkOrigin(*map(hex_number, (segment, epoch, offset)))
        return origin if containers == "containers" else None
    except (DecodeError, ValueError):
        return None


def creator_of(name: str) -> int | None:
    """The epoch of the owner that created the chunk, or the run ``.../runs/<epoch>-<cycle>-<id>...``; None
    for a name of any other form, which is never garbage unless a record names it."""
    if (origin := parse_chunk_name(name)) is not None:
        return origin.epoch

    try:
        return hex_number(name.rpartition("/")[2].partition("-")[0]) if is_run(name) else None
    except DecodeError:
        return None


def is_run(name: str) -> bool:
    """Imported files have any name (rule S19), also one in a folder ``runs``."""
    parts = name.removeprefix(CONTAINERS_PREFIX).split("/")
    return name.startswith(CONTAINERS_PREFIX) and len(parts) == 3 and parts[1] == "runs"


def is_ready(
    garbage: Garbage,
    *,
    now: float,
    referenced: Container[str],
    in_transaction: Container[str],
) -> bool:
    """Whether it may be deleted after a barrier (rule G1)."""
    return now >= garbage.due and garbage.name not in referenced and garbage.name not in in_transaction


def orphans(listed: Iterable[tuple[str, int]], *, epoch: int, referenced: Container[str]) -> list[str]:
    """The names in ``listed`` (chunk name, creating epoch) that dead owners left. Their transactions are
    over, because the log fenced these owners."""
    return [name for name, created in listed if created < epoch and name not in referenced]
