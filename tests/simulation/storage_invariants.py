"""What long-term storage must hold once everything is flushed and collected: the referenced chunks, no
others, with the right bytes.

``ChunkHistory`` sees every call to chunk storages in the whole run. The rest is pure and looks past all
faults, at what the storage really holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from support.live_segments import live_ids
from support.table_rows import records_of
from tierlog.actors.container.container import Container
from tierlog.actors.legacy_rolling.header import HEADER_SUFFIX
from tierlog.journal.manifest.chain import element_name, journal_prefix, runs_prefix
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.segments.records.segment import SegmentRecord

from .invariants import Broken
from .legacy_invariants import LegacyFilesLeft
from .records import OWN_CHUNKS, chain, segment_records
from .view import SegmentView, View

Contents = Mapping[str, bytes]
SYSTEM = "_system/"
_JOURNAL = "/journal/"
NO_LEGACY = LegacyFilesLeft()


CREATING = ("create", "create_with_content", "concat")


class ChunkHistory:
    """Every call to the chunk storages of all processes: no name is used twice, none changes another's
    chunk (rule S2), none makes a chunk before it has begun to claim long-term storage (rule J7), and none
    deletes one that the newest element names (rule G6).

    It is called inside the calls, where nothing may be raised: the first breach is kept for ``check``.
    """

    def __init__(self, is_published: Callable[[str], bool] = lambda chunk: False) -> None:
        """``is_published(chunk)``: whether long-term storage alone names it."""
        self._is_published = is_published
        self._creators: dict[str, int] = {}
        self._deleted: set[tuple[str, int]] = set()
        self._claims: set[tuple[int, str]] = set()
        """The processes that began to create an element of a container, by its number in names."""
        self._breach = ""

    def note(self, process: int, verb: str, name: str) -> None:
        if name.endswith(HEADER_SUFFIX):
            return  # of the legacy layout: each owner imports_on_access it up to date
        if verb == "delete":
            self._deleted.add((name, process))
            if self._is_published(name):
                self._note_breach(
                    f"what long-term storage alone names is there\n{name} is deleted by P{process}, and the "
                    f"newest element names it"
                )
        elif verb in CREATING and not name.startswith(SYSTEM):
            # A creation may be retried by the process that began it (rule S2), but not once that process
            # released it. What a zombie makes again after its successor deleted it is left for the next
            # opening, as all that a zombie makes.
            if self._creators.setdefault(name, process) != process or (name, process) in self._deleted:
                self._note_breach(
                    f"a chunk's name is used once, by one process\n{name} is created by P{process}; it was "
                    f"by P{self._creators[name]} before"
                )
            if name.startswith(OWN_CHUNKS) and (process, _container_of(name)) not in self._claims:
                self._note_breach(
                    f"an owner claims long-term storage before it writes there\n{name} is created by "
                    f"P{process}, which has created no element"
                )
        elif verb in CREATING and _JOURNAL in name:
            self._claims.add((process, _container_of(name.removeprefix(SYSTEM))))
        elif verb == "write" and self._creators.get(name) != process:
            self._note_breach(
                f"a chunk's name is used once, by one process\n{name} is written by P{process}; it was "
                f"created by P{self._creators.get(name)}"
            )

    def _note_breach(self, breach: str) -> None:
        self._breach = self._breach or breach

    def check(self) -> None:
        if self._breach:
            raise Broken(f"it does not hold that {self._breach}")


def _container_of(name: str) -> str:
    return name.split("/")[1]


def referenced_chunks(containers: Sequence[Container]) -> set[str]:
    return {
        chunk.name
        for container in containers
        for record in segment_records(records_of(container))
        for _, chunk in chain(records_of(container), record)
    }


def expected_names(containers: Sequence[Container], legacy: LegacyFilesLeft = NO_LEGACY) -> set[str]:
    """Referenced chunks, the store record, the newest element of each chain with its runs, and what must be
    left of the legacy layout."""
    heads = {element_name(container.index, head(container)) for container in containers}
    runs = {run.name for container in containers for run in container.state.table.runs}
    return referenced_chunks(containers) | heads | runs | {STORE_RECORD} | set(legacy.needed(containers))


def head(container: Container) -> int:
    """The number of the newest element that counts."""
    newest = container.state.manifest.head
    return 0 if newest is None else newest.position.n


def _may_be_left(name: str, containers: Sequence[Container]) -> bool:
    """The element before the newest with its runs, runs that wait for a cycle after they were merged, and
    older ones while nothing may be deleted (rules J8, G4, M11)."""
    return any(
        name == element_name(container.index, head(container) - 1)
        or container.state.manifest.runs_among([name])
        or name in container._components.table_runs._replaced
        or (
            name.startswith((journal_prefix(container.index), runs_prefix(container.index)))
            and container.confirmation.unconfirmed is not None
        )
        for container in containers
        if head(container)
    )


def left_over(
    containers: Sequence[Container], contents: Contents, legacy: LegacyFilesLeft = NO_LEGACY
) -> list[str]:
    return sorted(
        name
        for name in set(contents) - expected_names(containers, legacy)
        if not legacy.may_be_left(name) and not _may_be_left(name, containers)
    )


def check_stored(
    containers: Sequence[Container], contents: Contents, shown: View, legacy: LegacyFilesLeft = NO_LEGACY
) -> None:
    """Everything is flushed; ``shown`` is what the owners show of all segments."""
    missing = sorted(expected_names(containers, legacy) - set(contents))
    if missing:
        raise Broken(
            f"it does not hold that what metadata refers to is stored\nmissing: {', '.join(missing)}"
        )

    for breach in legacy.breaches(containers, contents, shown):
        raise Broken(
            f"it does not hold that the legacy layout is left as it was, or as it is said to be\n{breach}"
        )
    for container in containers:
        for breach in _breaches(container, contents, shown):
            raise Broken(
                f"it does not hold that chunks hold their segments' bytes\ncontainer {container.index}: "
                f"{breach}"
            )


def _breaches(container: Container, contents: Contents, shown: View) -> Iterator[str]:
    records = {record.segment: record for record in segment_records(records_of(container))}
    live = set(live_ids(container).values())
    merged = {merge.source for segment in container.state.segments.by_id.values() for merge in segment.merges}
    yield from (
        f"there is a record of {sid:#x}, which is no segment any more"
        for sid in records
        if sid not in live | merged
    )
    for name, segment in shown.items():
        record = records.get(segment.segment_id or 0)
        if record is not None and container.state.segments.sid_of(name) == segment.segment_id:
            yield from _segment_breaches(container, record, contents, name, segment)


def _segment_breaches(
    container: Container, record: SegmentRecord, contents: Contents, name: str, segment: SegmentView
) -> Iterator[str]:
    recorded = (record.length, record.start_offset, record.sealed)
    if recorded != (segment.length, segment.start, segment.sealed):
        yield (
            f"{name}: recorded length, start and seal are {recorded}, shown are "
            f"{(segment.length, segment.start, segment.sealed)}"
        )

    for offset, chunk in chain(records_of(container), record):
        stored = contents[chunk.name][: chunk.length]
        if len(stored) < chunk.length:
            yield f"{name}: chunk {chunk.name} has {len(stored)} bytes, recorded are {chunk.length}"

        skipped = min(chunk.length, max(0, segment.start - offset))
        begin = offset + skipped - segment.start
        if stored[skipped:] != segment.data[begin : begin + chunk.length - skipped]:
            yield (
                f"{name}: chunk {chunk.name}, at {offset} of the segment, holds other bytes than readers "
                f"are given"
            )
