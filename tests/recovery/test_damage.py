"""Damage to any persisted file: the store recovers everything that was acked, or refuses and says which file; never silently less.

A small store is closed well, then each of its files is cut at every byte, has every bit flipped in turn, or vanishes. A refused open
leaves every file as it was, but for the register: its epoch is raised before anything is read, because only then nobody else can be
writing. What a refusal cannot avoid to add is a log file and a claim of the new epoch, when the damage is found behind the log's opening.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from random import Random

import attrs
import pytest

from support.crash_world import FOLDER, BriskFiles, check_chunks, container, fork, opened
from support.oracle import View, observe
from support.virtual import run_virtual
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, TierlogError
from tierlog.storage_backends.base.segments import AttributeUpdate
from tierlog.testing.simulated_files import SimulatedDisk, SimulatedFiles

pytestmark = pytest.mark.timeout(600)

WRITERS = dict.fromkeys(("a/flushed", "a/tail", "a/tail#1"), frozenset("w"))
IDENTITY, REGISTER = f"{FOLDER}/wal/store", f"{FOLDER}/wal/0000/register"


@attrs.frozen
class Image:
    disk: SimulatedDisk
    view: View

    def paths(self, part: str) -> list[str]:
        return sorted(path for path in files_of(self.disk) if part in path)


def files_of(disk: SimulatedDisk) -> dict[str, bytes]:
    return {f"{path}/{name}": bytes(entry.cache) for path, folder in disk._folders.items() for name, entry in folder.names.items() if entry}


@lru_cache(maxsize=1)
def image() -> Image:
    """Chunks, a checkpoint, log files of two owners, a clean end."""

    async def make() -> Image:
        disk = SimulatedDisk(Random(0))
        async with opened(SimulatedFiles(disk), 1) as store:
            await store.create_segment("a/flushed", rolling_size=40)
            await store.append_many("a/flushed", [b"flushed", b"and", b"forgotten" * 5], writer_id="w", first_event_number=1)
            await store.flush()
            # From here on the log does not hold these bytes any more, only the chunks do.
            await container(store)._parts.checkpointer.checkpoint()
        async with opened(SimulatedFiles(disk), 2) as store:
            await store.create_segment("a/tail")
            await store.append("a/tail", b"only in the log", writer_id="w", event_number=5)
            await store.update_attributes("a/tail", [AttributeUpdate("epoch", 3)])
            await store.create_segment("a/tail#1")
            await store.append("a/tail#1", b"merged")
            await store.seal_segment("a/tail#1")
            await store.merge_segments("a/tail", ["a/tail#1"])
            view = await observe(store, WRITERS)
        return Image(disk, view)

    return run_virtual(make, 0)


async def judge(disk: SimulatedDisk, path: str) -> bool:
    """Open the damaged store: True if it is whole, False if it is refused as it should be; anything else fails."""
    before, expected, is_open = files_of(disk), image().view, False
    try:
        async with opened(BriskFiles(disk), 9) as store:
            is_open = True
            assert await observe(store, WRITERS) == expected
            await store.flush()
            await check_chunks(store, disk)
            return True
    except (DataCorruption, StoreMismatch) as error:
        refusal = error
    assert named(refusal, path), f"{path} is damaged, and the refusal does not say so: {refusal}"
    # Damage in a chunk is found by the reads that need it; the store goes on with the rest, and its log with it.
    check_untouched(before, files_of(disk), CHUNKS if is_open else "/")
    return False


def named(error: TierlogError, path: str) -> bool:
    """Whether the refusal leads to the damaged file; chunks are named as such, without their root."""
    place = getattr(error, "file", "") or str(error)
    return path in place or path.removeprefix(f"{FOLDER}/lts/") in place


def check_untouched(before: dict[str, bytes], after: dict[str, bytes], part: str) -> None:
    kept = {path: content for path, content in before.items() if part in path and path != REGISTER}
    changed = [path for path, content in kept.items() if after.get(path) != content]
    assert not changed, f"a refusal changed {changed}"


def judge_all(cases: Iterable[tuple[str, bytes | None]]) -> tuple[int, int]:
    """Judge every (path, new content); returns how many were whole and how many refused."""

    source = image().disk  # made before the loop below runs: making it runs a loop of its own

    async def run() -> tuple[int, int]:
        whole = refused = 0
        for path, content in cases:
            disk, _ = fork(source)
            try:
                if content is None:
                    disk.unlink(path)
                else:
                    disk.replace(path, content)
                if await judge(disk, path):
                    whole += 1
                else:
                    refused += 1
            except BaseException as error:
                error.add_note(f"damaged: {difference(path, content)}")
                raise
        return whole, refused

    return run_virtual(run, 0)


def difference(path: str, content: bytes | None) -> str:
    original = image().disk.content(path)
    if content is None:
        return f"{path} removed"

    if len(content) != len(original):
        return f"{path} cut to {len(content)} of {len(original)} bytes"

    offset = next(index for index in range(len(content)) if content[index] != original[index])
    return f"{path} at byte {offset}: {original[offset]:#x} became {content[offset]:#x}"


def cuts(paths: Iterable[str], step: int = 1) -> Iterable[tuple[str, bytes]]:
    for path in paths:
        content = image().disk.content(path)
        yield from ((path, content[:size]) for size in range(0, len(content), step))


def flips(paths: Iterable[str], bits: Iterable[int]) -> Iterable[tuple[str, bytes]]:
    for path in paths:
        content = image().disk.content(path)
        for bit in bits:
            if bit < 8 * len(content):
                damaged = bytearray(content)
                damaged[bit // 8] ^= 1 << bit % 8
                yield path, bytes(damaged)


EVERY_BIT = range(1 << 20)
A_BIT_OF_EVERY_BYTE = [8 * index + index * 5 % 8 for index in range(1 << 17)]
WAL, CHUNKS, CLAIMS = "/data/wal/0000/0", "/lts/containers/", "/lts/_system/"


def test_the_image_has_everything_that_can_be_damaged() -> None:
    assert len(image().paths(WAL)) >= 2
    assert len(image().paths(CHUNKS)) >= 2
    assert len(image().paths(CLAIMS)) == 1
    assert judge_all([(IDENTITY, image().disk.content(IDENTITY))]) == (1, 0)


def test_hole_10_the_log_cut_at_every_byte() -> None:
    whole, refused = judge_all(cuts(image().paths(WAL)))
    assert refused > 10 * whole


def test_hole_10_a_flipped_bit_in_every_byte_of_the_log() -> None:
    whole, refused = judge_all(flips(image().paths(WAL), A_BIT_OF_EVERY_BYTE))
    assert refused > 10 * whole


@pytest.mark.long
def test_hole_10_every_flipped_bit_of_the_log() -> None:
    judge_all(flips(image().paths(WAL), EVERY_BIT))


def test_the_register_cut_at_every_byte() -> None:
    assert judge_all(cuts([REGISTER]))[0] == 0


def test_every_flipped_bit_of_the_registers_records() -> None:
    """The rest of the file is padding, of which samples are tried."""
    whole, refused = judge_all(flips([REGISTER], [*range(8 * 36), *range(8 * 508, 8 * 640), *A_BIT_OF_EVERY_BYTE[36:4096:31]]))
    assert refused > whole


def test_every_cut_and_flipped_bit_of_the_identity() -> None:
    assert judge_all([*cuts([IDENTITY]), *flips([IDENTITY], EVERY_BIT)])[0] == 0


def test_every_cut_and_flipped_bit_of_a_claim() -> None:
    claims = image().paths(CLAIMS)
    assert judge_all([*cuts(claims), *flips(claims, EVERY_BIT)])[0] == 0


def test_hole_32_every_cut_and_flipped_bit_of_a_chunk() -> None:
    chunks = image().paths(CHUNKS)
    assert judge_all([*cuts(chunks), *flips(chunks, EVERY_BIT)])[0] == 0


def test_a_missing_file() -> None:
    """A claim, and what only marks or reserves, may be missing; everything else is missed."""
    vital = [IDENTITY, REGISTER, *image().paths(WAL), *image().paths(CHUNKS)]
    others = [path for path in files_of(image().disk) if path not in vital]
    assert judge_all([(path, None) for path in vital]) == (0, len(vital))
    assert judge_all([(path, None) for path in others]) == (len(others), 0)
