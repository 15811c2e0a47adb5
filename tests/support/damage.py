"""Small stores at several moments of their life, damage to their files, and the check of a store that is
opened with it.

A *damage* is a set of files with new contents (None: the file is gone). The result is one of two: the store
is whole, with all that was acked; or the damage is refused, by the opening or by the reads that need the
damaged bytes, and the error names the file, with an offset that is not behind the first damaged byte.
Anything else fails: above all a store that opens with less.

A refused open leaves every file as it was, but for the register: its epoch is raised before anything is read,
because only then nobody else can be writing. What it may add is a log file of the new epoch; what
it may sweep is nobody's data: the note of an owner that died, and chunks that were never published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import attrs
from simulation.file_layer import SimulatedDisk, SimulatedFiles
from simulation.model_calls import Append, Merge, Seal

from support.crash_enumeration import Instant, Scenario, live
from support.crash_scenarios import FLUSH, PATIENT
from support.crash_scripts import Flush, alone, create, set_attribute
from support.crash_world import FOLDER, Limits, check_chunks, container, opened
from support.oracle import Unseen, View, observe
from support.virtual import run_virtual
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.frames import FRAME_HEADER_BYTES
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, TierlogError, Unavailable
from tierlog.storage_backends.chunks.filesystem_programs import IDENTIFICATION

Damage = Mapping[str, bytes | None]
IDENTITY, REGISTER = f"{FOLDER}/wal/store", f"{FOLDER}/wal/0000/register"
ROOT_IDENTIFICATION = f"{FOLDER}/lts/{IDENTIFICATION}"
WAL, CHUNKS, SYSTEM = "/data/wal/0000/0", "/lts/containers/", "/lts/_system/"
SWEPT = ("/owners/", "/lts/.tmp-")
"""What an opening sweeps before it looks at anything."""


# --- images -------------------------------------------------------------------------------------


class Checkpoint(Unseen):
    """Afterwards the log does not hold what was flushed before."""

    async def send(self, store: SegmentStore) -> Any:
        await container(store)._components.checkpointer.checkpoint()


FLUSHED = alone(
    create("a/flushed", 40),
    Append("a/flushed", (b"flushed", b"and", b"forgotten" * 5), "w", 1),
    Flush(),
    Checkpoint(),
)
TAIL = alone(
    create("a/tail"),
    Append("a/tail", (b"only in the log",), "w", 5),
    set_attribute("a/tail", "epoch", 3),
    create("a/tail#1"),
    Append("a/tail#1", (b"merged",)),
    Seal("a/tail#1"),
    Merge("a/tail", ("a/tail#1",)),
)


ONE_CHECKPOINT = Limits(wal_file=5000, checkpoint=1 << 20)
"""The second owner makes none: it needs the first one's log."""


def _append(tag: bytes, size: int) -> Append:
    return Append("a/s", ((tag * size)[:size],))


LIVES = {
    # Chunks, a checkpoint, log files of two owners, a clean end.
    "closed": Scenario(rules="", sessions=[FLUSHED, TAIL], limits=ONE_CHECKPOINT),
    # The same without a footer.
    "killed": Scenario(rules="", sessions=[FLUSHED, attrs.evolve(TAIL, killed=True)], limits=ONE_CHECKPOINT),
    # In the middle of a flush cycle: one segment's chunks are written and not yet committed.
    "flushing": FLUSH,
    # Rolled files of four owners, of which some ended without a footer; nothing was flushed.
    "owners": Scenario(
        rules="",
        sessions=[
            alone(create("a/s"), _append(b"one", 250), _append(b"on", 120), killed=True),
            alone(_append(b"two", 300)),
            alone(_append(b"three", 100), killed=True),
            alone(_append(b"four", 260), _append(b"end", 30)),
        ],
        limits=Limits(wal_file=700, flush=1 << 20, checkpoint=1 << 20),
    ),
}


@attrs.frozen
class Image:
    name: str
    disk: SimulatedDisk
    view: View
    writers: Mapping[str, Sequence[str]]
    versions: Mapping[str, Sequence[bytes]]
    """What each file held at earlier calls of its life, oldest first."""

    def paths(self, part: str) -> list[str]:
        return [path for path in files_of(self.disk) if part in path]

    def content(self, path: str) -> bytes:
        return self.disk.content(path)


def files_of(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files_below("/")}


@lru_cache
def image(name: str) -> Image:
    instants = run_virtual(partial(live, LIVES[name], 0), 0).instants
    last = (
        next(index for index, instant in enumerate(instants) if _is_commit(instant))
        if name == "flushing"
        else len(instants) - 1
    )
    disk, oracle = instants[last].disk, instants[last].oracle.after_crash()

    async def look() -> View:
        async with opened(SimulatedFiles(disk.copy(), interleave=False), 8, PATIENT) as store:
            view = await observe(store, oracle.writers)
            oracle.check(view)
            return view

    return Image(name, disk, run_virtual(look, 0), oracle.writers, _versions(instants[:last], disk))


def _is_commit(instant: Instant) -> bool:
    """Whether a chunk is complete under its temporary name, and everything that the log holds was
    answered."""
    is_link = instant.call.startswith(f"Link {FOLDER}/lts/containers/")
    return is_link and not instant.oracle.has_pending


def _versions(earlier: Sequence[Instant], last: SimulatedDisk) -> dict[str, list[bytes]]:
    versions: dict[str, list[bytes]] = {path: [] for path in files_of(last)}
    for instant in earlier:
        for path, content in files_of(instant.disk).items():
            if path in versions and content not in versions[path]:
                versions[path].append(content)
    return {
        path: [content for content in found if content != last.content(path)]
        for path, found in versions.items()
    }


# --- damage -------------------------------------------------------------------------------------


def cut(path: str, content: bytes, sizes: Iterable[int]) -> Iterator[Damage]:
    yield from ({path: content[:size]} for size in sizes if 0 <= size < len(content))


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def flips(path: str, content: bytes, bits: Iterable[int]) -> Iterator[Damage]:
    yield from ({path: flipped(content, bit)} for bit in bits if bit < 8 * len(content))


def zeroed(path: str, content: bytes, size: int) -> Iterator[Damage]:
    """Each page of ``size`` bytes in turn reads as zeros."""
    for start in range(0, len(content), size):
        end = min(start + size, len(content))
        if any(content[start:end]):
            yield {path: content[:start] + bytes(end - start) + content[end:]}


def written(content: bytes) -> int:
    """Where a WAL file's last record ends, about: behind it are zeros, and to cut those off changes
    nothing."""
    return len(content.rstrip(b"\0"))


def records(content: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end of its header, end) of each record of a WAL file; the file's header is all header."""
    end = 12 + int.from_bytes(content[8:12], "big") + 4
    yield 0, end, end
    while end < written(content):
        start, size = end, int.from_bytes(content[end + 4 : end + 8], "big")
        end = start + FRAME_HEADER_BYTES + size
        yield start, start + FRAME_HEADER_BYTES, end


def describe_damage(found: Image, damage: Damage) -> str:
    return f"{found.name}: " + "; ".join(
        _difference(found, path, content) for path, content in damage.items()
    )


def _difference(found: Image, path: str, content: bytes | None) -> str:
    if content is None:
        return f"{path} removed"

    if path not in files_of(found.disk):
        return f"{path} added"

    original, at = found.content(path), first_difference(found, path, content)
    if len(content) != len(original):
        return f"{path} with {len(content)} instead of {len(original)} bytes, the same up to {at}"

    return f"{path} at byte {at}: {original[at : at + 8].hex()} became {content[at : at + 8].hex()}"


def damaged(source: SimulatedDisk, damage: Damage) -> SimulatedDisk:
    disk = source.copy()
    for path, content in damage.items():
        if content is None:
            disk.unlink(path)
            continue
        if path not in disk.files_below("/"):
            disk.make_folder(path.rpartition("/")[0])
            disk.create(path)
        disk.replace(path, content)
        disk.folder(path.rpartition("/")[0]).sync()
    return disk


# --- the check ----------------------------------------------------------------------------------


async def check(found: Image, damage: Damage, *, strays: bool = False) -> bool:
    """Open the damaged store: True if it is whole, False if it is refused as it should be; anything else
    fails.

    ``strays``: what was added is nobody's business, and stays where it is.
    """
    disk = damaged(found.disk, damage)
    before, is_open = files_of(disk), False
    try:
        async with opened(SimulatedFiles(disk, interleave=False), 9, PATIENT) as store:
            is_open = True
            assert await observe(store, found.writers) == found.view
            await store.flush()
            if strays:
                assert all(disk.content(path) == content for path, content in damage.items())
            else:
                gone = [path for path, content in damage.items() if content is None and "/runs/" in path]
                # A run's local copy serves as well (rule M6).
                await check_chunks(store, disk, gone=[path.partition("/lts/")[2] for path in gone])
            return True
    except (DataCorruption, StoreMismatch, Unavailable) as error:
        refusal: TierlogError = error
    assert any(leads_to(refusal, found, path, content) for path, content in damage.items()), (
        f"the refusal does not say where the damage is: {refusal}"
    )
    # Damage in a chunk is found by the reads that need it; the store goes on with the rest, and its log with
    # it. What the chain lacks is known once the log is open.
    check_untouched(before, files_of(disk), CHUNKS if is_open or "adopt it" in str(refusal) else "/")
    return False


def leads_to(error: TierlogError, found: Image, path: str, content: bytes | None) -> bool:
    """Whether the refusal names the damaged file, and the start of what is damaged in it; chunks are named as
    such, without their root."""
    if not isinstance(error, DataCorruption):
        # Without its register and its files a log is a new one, and only the chain in long-term storage knows
        # better (J6). Of a chain without elements the folder is named.
        name = path.removeprefix(f"{FOLDER}/lts/")
        if content is None and "/journal/" in name:
            name = name.rpartition("/")[0]
        return name in str(error) or (
            path == REGISTER and content is None and "was claimed with element" in str(error)
        )

    if error.file not in (path, path.removeprefix(f"{FOLDER}/lts/")):
        return False

    # A run is read from its trailer on, which says that it is cut off or does not match what is before it.
    return "/runs/" in path or 0 <= error.offset <= first_difference(found, path, content)


def first_difference(found: Image, path: str, content: bytes | None) -> int:
    original = files_of(found.disk).get(path)
    if content is None or original is None:
        return 0

    shorter = min(len(content), len(original))
    return next((index for index in range(shorter) if content[index] != original[index]), shorter)


def check_untouched(before: Mapping[str, bytes], now: Mapping[str, bytes], part: str) -> None:
    kept = [
        path
        for path in before
        if part in path and path != REGISTER and not any(swept in path for swept in SWEPT)
    ]
    changed = [path for path in kept if now.get(path) != before[path]]
    assert not changed, f"a refusal changed {changed}"


def check_all(found: Image, damages: Iterable[Damage], *, strays: bool = False) -> tuple[int, int]:
    """Checks each; returns how many were whole and how many refused."""

    async def run() -> tuple[int, int]:
        whole = refused = 0
        for damage in damages:
            try:
                if await check(found, damage, strays=strays):
                    whole += 1
                else:
                    refused += 1
            except BaseException as error:
                error.add_note(f"damaged: {describe_damage(found, damage)}")
                raise
        return whole, refused

    return run_virtual(run, 0)


def each_file(found: Image, part: str, damages: Callable[[str, bytes], Iterable[Damage]]) -> Iterator[Damage]:
    for path in found.paths(part):
        yield from damages(path, found.content(path))
