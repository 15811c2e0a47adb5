"""Damage to any persisted file: the store recovers everything that was acked, or refuses and says where;
never silently less.

Small stores are taken at several moments: after a clean end, after a kill, in the middle of a flush cycle,
with the files of several owners. Then files are cut, have bits flipped or pages zeroed, vanish, return from a
backup, or are copied. ``support/damage.py`` defines the verdicts. The default run flips bits in
a sample of bytes and cuts at the boundaries of records and sectors; ``-m extended`` flips every bit of
headers, ``--long`` tries every byte and every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from support.crash_enumeration import sector_boundaries
from support.damage import (
    CHUNKS,
    IDENTITY,
    LIVES,
    REGISTER,
    ROOT_IDENTIFICATION,
    SYSTEM,
    WAL,
    Damage,
    Image,
    check_all,
    cut,
    each_file,
    files_of,
    flipped,
    flips,
    image,
    records,
    written,
    zeroed,
)

pytestmark = pytest.mark.timeout(1200)
every_image = pytest.mark.parametrize("moment", LIVES)
some_images = pytest.mark.parametrize(
    "moment",
    [
        name if name in {"owners", "flushing"} else pytest.param(name, marks=pytest.mark.extended)
        for name in LIVES
    ],
)
one_image = pytest.mark.parametrize(
    "moment",
    [name if name == "owners" else pytest.param(name, marks=pytest.mark.extended) for name in LIVES],
)
sampled = pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.extended)])
"""Every so many-th byte and bit."""

EVERY_BIT = range(1 << 20)
REGISTER_BITS = [*range(8 * 52), *range(8 * 508, 8 * 1536)]
"""The epoch's record without its padding, and the watermarks."""


def test_the_images_have_everything_that_can_be_damaged() -> None:
    assert len(image("closed").paths(WAL)) >= 2
    assert len(image("closed").paths(CHUNKS)) >= 2
    assert len(image("closed").paths(SYSTEM)) == 4, "the store record, two elements, a run"
    assert len(image("closed").paths("/wal/0000/runs/")) == 1
    assert len(image("owners").paths(WAL)) > 4
    assert len({path[-25:-13] for path in image("owners").paths(WAL)}) == 4
    assert len(image("flushing").paths("/lts/.tmp-")) == 1
    assert image("killed").paths("/owners/")
    assert not image("closed").paths("/owners/")


@every_image
def test_an_image_that_is_not_damaged_is_whole(moment: str) -> None:
    assert check_all(image(moment), [{IDENTITY: image(moment).content(IDENTITY)}]) == (1, 0)


# --- prefixes -----------------------------------------------------------------------------------


def boundaries(path: str, content: bytes) -> Iterator[Damage]:
    """Cuts at the boundaries of records and sectors, and one byte beside each."""
    edges = {
        *sector_boundaries(0, written(content)),
        *(edge for record in records(content) for edge in record),
    }
    yield from cut(path, content, sorted({edge + beside for edge in edges for beside in (-1, 0, 1)}))


@some_images
def test_the_log_cut_at_every_boundary(moment: str) -> None:
    whole, refused = check_all(image(moment), each_file(image(moment), WAL, boundaries))
    assert refused > 3 * whole


@pytest.mark.long
@every_image
def test_the_log_cut_at_every_byte(moment: str) -> None:
    cuts = each_file(image(moment), WAL, lambda path, content: cut(path, content, range(written(content))))
    whole, refused = check_all(image(moment), cuts)
    assert refused > 3 * whole


def test_the_register_cut_at_every_boundary() -> None:
    found = image("closed")
    edges = {beside + edge for edge in range(0, 4096, 64) for beside in (-1, 0, 1)}
    assert check_all(found, cut(REGISTER, found.content(REGISTER), sorted(edges)))[0] == 0


@pytest.mark.long
@every_image
def test_the_register_cut_at_every_byte(moment: str) -> None:
    found = image(moment)
    assert check_all(found, cut(REGISTER, found.content(REGISTER), range(4096)))[0] == 0


# --- bits ---------------------------------------------------------------------------------------


def header_bits(path: str, content: bytes) -> Iterator[Damage]:
    yield from flips(
        path, content, (bit for start, end, _ in records(content) for bit in range(8 * start, 8 * end))
    )


def a_bit_of_every_31st_byte(path: str, content: bytes) -> Iterator[Damage]:
    """The rest is like it: ``--long`` flips every bit of all."""
    yield from flips(path, content, (8 * at + at * 5 % 8 for at in range(0, written(content), 31)))


def a_bit_of_every_third_header_byte(path: str, content: bytes) -> Iterator[Damage]:
    """One bit in every third header byte; of neighbouring records another third each."""
    yield from flips(
        path,
        content,
        (
            8 * at + at % 8
            for number, (start, end, _) in enumerate(records(content))
            for at in range(start + number % 3, end, 3)
        ),
    )


@pytest.mark.parametrize(
    "bits", [a_bit_of_every_third_header_byte, pytest.param(header_bits, marks=pytest.mark.extended)]
)
def test_flipped_bits_of_the_logs_headers(bits: Callable[[str, bytes], Iterator[Damage]]) -> None:
    whole, refused = check_all(image("closed"), each_file(image("closed"), WAL, bits))
    assert refused > 10 * whole


@one_image
def test_flipped_bits_all_over_the_log(moment: str) -> None:
    """What an opener logged again may rot in the older file: no owner needs it there."""
    whole, refused = check_all(image(moment), each_file(image(moment), WAL, a_bit_of_every_31st_byte))
    assert refused > 3 * whole


@pytest.mark.long
@every_image
def test_every_flipped_bit_of_the_log(moment: str) -> None:
    check_all(
        image(moment), each_file(image(moment), WAL, lambda path, content: flips(path, content, EVERY_BIT))
    )


@sampled
def test_every_flipped_bit_of_the_registers_records(step: int) -> None:
    """What was never written in it is padding and empty slots; of those, samples are tried."""
    found = image("closed")
    content = found.content(REGISTER)
    bits = [
        bit
        for bit in REGISTER_BITS
        if bit < 8 * 512 or any(content[(bit // 512) * 64 :][:64]) or bit % 61 == 0
    ]
    whole, refused = check_all(
        found, flips(REGISTER, content, [*bits[::step], *range(8 * 1536, 8 * 4096, 997 * step)])
    )
    assert refused > whole


@pytest.mark.long
@every_image
def test_every_flipped_bit_of_the_register(moment: str) -> None:
    check_all(image(moment), flips(REGISTER, image(moment).content(REGISTER), EVERY_BIT))


def everything(path: str, content: bytes, step: int = 1) -> Iterator[Damage]:
    yield from cut(path, content, range(0, len(content), step))
    yield from flips(path, content, EVERY_BIT[::step])


@pytest.mark.parametrize("part", [IDENTITY, "/lts/_system/store", "newest element"])
@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.extended)])
def test_every_cut_and_flipped_bit_of_identity_store_record_and_element(part: str, step: int) -> None:
    found = image("closed")
    damages = each_file(
        found, newest_element(found) if part == "newest element" else part, partial(everything, step=step)
    )
    assert check_all(found, damages)[0] == 0


def test_damage_of_the_element_before_the_newest_is_harmless() -> None:
    """J2: the newest one says everything."""
    found = image("closed")
    before = found.paths("/journal/")[0]
    assert check_all(found, everything(before, found.content(before), 101))[1] == 0


def newest_element(found: Image) -> str:
    return found.paths("/journal/")[-1]


@sampled
def test_every_cut_and_flipped_bit_of_a_chunk(step: int) -> None:
    damages = each_file(image("closed"), CHUNKS, partial(everything, step=step))
    assert check_all(image("closed"), damages)[0] == 0


# --- pages and whole files ----------------------------------------------------------------------


@some_images
def test_zeroed_pages(moment: str) -> None:
    """A page that was lost by the file system. Of the register's watermarks alone that loses nothing: the log
    is there."""
    found = image(moment)
    pages = [
        damage
        for size in (64, 512, 4096)
        for path in files_of(found.disk)
        for damage in zeroed(path, found.content(path), size)
    ]
    whole, refused = check_all(found, pages)
    assert refused > whole


@every_image
def test_a_missing_file(moment: str) -> None:
    """The store record, and what only marks or reserves, may be missing; everything else is missed. Without
    its identification, long-term storage counts as not mounted (S20)."""
    found = image(moment)
    system = [IDENTITY, REGISTER, newest_element(found), ROOT_IDENTIFICATION]
    vital = [*system, *found.paths(WAL), *found.paths(CHUNKS)]
    others = [path for path in files_of(found.disk) if path not in vital]
    assert check_all(found, [{path: None} for path in vital]) == (0, len(vital))
    assert check_all(found, [{path: None} for path in others]) == (len(others), 0)


@some_images
def test_a_file_from_an_older_backup(moment: str) -> None:
    """Every file in turn as it was at every earlier call that changed it. A stale register hides nothing: the
    log is there."""
    found = image(moment)
    stale: list[Damage] = [
        {path: content} for path, versions in found.versions.items() for content in versions
    ]
    assert len([damage for damage in stale if REGISTER in damage]) > 3
    assert len([damage for damage in stale if any(WAL in path for path in damage)]) > 3
    whole, refused = check_all(found, stale)
    assert whole > 3
    assert refused > 3


@one_image
def test_two_damaged_files(moment: str) -> None:
    """A sample of pairs; one of the two is named."""
    random = Random(moment)
    check_all(image(moment), [two_damages(image(moment), random) for _ in range(100)])


def two_damages(found: Image, random: Random) -> Damage:
    return {path: broken(found.content(path), random) for path in random.sample([*files_of(found.disk)], 2)}


def broken(content: bytes, random: Random) -> bytes | None:
    if not content:
        return None

    size = len(content)
    return random.choice(
        (flipped(content, random.randrange(8 * size)), content[: random.randrange(size)], bytes(size), None)
    )


@some_images
def test_a_duplicated_file(moment: str) -> None:
    """Under every name that its folder may hold; the copy is ignored, collected or refused, and never read in
    place of the original."""
    found = image(moment)
    names = [f"{WAL}{epoch:015x}-{sequence:08x}.wal" for epoch in (1, 2, 5, 64) for sequence in (1, 2, 3, 7)]
    copies: list[Damage] = [
        {name: found.content(path)}
        for path in found.paths(WAL)
        for name in names
        if name not in files_of(found.disk)
    ]
    chunks = [(path, path.rpartition("-")[0]) for path in found.paths(CHUNKS)]
    copies += [{f"{name}-{17:032x}": found.content(path)} for path, name in chunks]
    copies += [{f"{FOLDER_OF_LOG}/register.new": found.content(REGISTER)}]
    whole, refused = check_all(found, copies)
    assert whole > 0
    assert refused > 0


FOLDER_OF_LOG = REGISTER.rpartition("/")[0]
STRAYS = ("notes.txt", "core", "0000000000000001-00000001.wal~", "lost+found.1", "registers")


@some_images
def test_stray_files_are_left_alone(moment: str) -> None:
    found = image(moment)
    folders = {path.rpartition("/")[0] for path in files_of(found.disk)} - {"/data/owners"}
    strays: list[Damage] = [
        {f"{folder}/{name}": b"not ours"} for folder in sorted(folders) for name in STRAYS
    ]
    assert check_all(found, strays, strays=True) == (len(strays), 0)
