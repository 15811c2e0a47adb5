"""Runs byte by byte: golden bytes, equal input, damage of every byte, limits, what a lookup skips (M2)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.sorted_runs import encode, entry_of, numbered, of_newer_format, reader_of
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.sorted_runs.block import (
    BlockBuilder,
    check_block,
    common_prefix,
    find_in_block,
    rows_of_block,
)
from tierlog.storage_backends.sorted_runs.encoder import RunEncoder
from tierlog.storage_backends.sorted_runs.reader import RunSource
from tierlog.storage_backends.sorted_runs.rows import Row, prefix_end
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import TableView
from tierlog.storage_backends.sorted_runs.tail import Tail, decode_tail, tail_in_steps
from tierlog.storage_backends.sorted_runs.trailer import Trailer

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "sorted_run_v2.hex"
SAMPLE = [
    Row(b"a", 7, b"one"),
    Row(b"app/events", 9, b""),
    Row(b"app/log", 8, None),
    *numbered(5, version=20),
    Row(b"key/000005x", 1 << 40, bytes(30)),
]

KEYS = st.binary(min_size=1, max_size=12) | st.text("ab", min_size=1, max_size=6).map(str.encode)
VERSIONS = st.integers(1, (1 << 64) - 1)
TABLES = st.dictionaries(
    KEYS, st.tuples(VERSIONS, st.none() | st.binary(max_size=20)), min_size=1, max_size=60
).map(lambda found: [Row(key, *found[key]) for key in sorted(found)])


class BytesInMemory(RunSource):
    """Runs by name; a cut one is shorter than its entry says."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        return self.contents[run.name][offset : offset + length]


async def all_rows(run: RunEntry, data: bytes) -> list[Row]:
    """Every live row of one run, each byte of it verified."""
    view = TableView((), RunList([run]), run.summary.max_version)
    page = await scan_rows(view, reader_of(BytesInMemory(r=data)), KeyRange(), PageLimits(rows=10_000))
    return page.rows


def test_the_bytes_of_a_run_are_golden() -> None:
    run, data = encode(SAMPLE)

    assert data.hex() == "".join(GOLDEN.read_text().split())
    assert (run.length, run.summary.rows, run.summary.tombstones) == (len(data), len(SAMPLE), 1)


def test_the_bytes_of_an_entry_are_golden() -> None:
    entry = RunEntry.of(encode(SAMPLE)[0], 3, 4)

    assert entry.encode().hex() == (
        "01" "000672756e732f31" "00000000000001ed" "3bc3039f" "000000cf" "0000000000000003" "0000000000000004"
        "00000009" "00000001" "0000000000000007" "0000010000000000"
        "00000001" "61" "0000000b" "6b65792f30303030303578"
    )  # fmt: skip
    assert RunEntry.decode(entry.encode()) == entry


def test_fields_of_a_newer_entry_are_kept() -> None:
    data = entry_of(SAMPLE)[0].encode() + b"newer"

    assert RunEntry.decode(data).encode() == data


@given(TABLES, st.sampled_from([1, 40, 100, 10_000]))
def test_every_row_is_found_and_no_other(rows: list[Row], block_bytes: int) -> None:
    run, data = encode(rows, block_bytes)
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)
    blocks = [data[tail.offsets[n] : tail.offsets[n + 1]] for n in range(tail.blocks)]
    for offset, block in zip(tail.offsets, blocks, strict=False):
        check_block(block, run.name, offset)

    assert [row for block in blocks for row in rows_of_block(block)] == rows
    trailer, length = Trailer.decode(data, run.name, run.length)
    index = data[-length - trailer.index_length : -length]
    assert [entry.version for entry in rows_of_block(index)] == [
        max(row.version for row in rows_of_block(block)) for block in blocks
    ]
    for row in rows:
        number = tail.find_block(row.key)
        assert number is not None
        assert find_in_block(blocks[number], row.key) == row
        for absent in (row.key + b"\0", row.key[:-1], b"\xff" + row.key):
            if absent not in {other.key for other in rows}:
                possible = tail.find_block(absent)
                assert possible is None or find_in_block(blocks[possible], absent) is None
        start = [
            found for block in blocks[tail.block_at(row.key) :] for found in rows_of_block(block, row.key)
        ]
        assert start == [other for other in rows if other.key >= row.key]


@pytest.mark.parametrize("block_bytes", [1, 8 << 10])
@pytest.mark.parametrize("key_bytes", [2, 8 << 10])
@pytest.mark.parametrize("place", ["first", "last"])
def test_m3_the_longest_tails_are_within_their_bound(block_bytes: int, key_bytes: int, place: str) -> None:
    """Of rows that have little besides their fingerprints, and of keys that have long separators."""
    count = 60_000 if key_bytes == 2 else 300
    rest = b"k" * (key_bytes - 2)
    keys = [
        n.to_bytes(2, "big") + rest if place == "first" else b"k" + rest + n.to_bytes(2, "big")
        for n in range(1, count)
    ]
    run, _ = encode([Row(key, 1, None) for key in keys], block_bytes)

    entry = RunEntry.of(run, 1, 1)
    assert entry.is_of_a_writer
    # And without what the constant allows tiny runs: a large run has no more for each row.
    assert run.tail_length - len(rest) * 3 - 200 <= (run.length - run.tail_length) * 5 // 4


@pytest.mark.anyio
@pytest.mark.parametrize(("length", "tail_length"), [(1 << 30, None), (8 << 20, 5 << 20)])
async def test_m3_a_run_that_no_writer_makes_is_damage_before_anything_is_read(
    length: int, tail_length: int | None
) -> None:
    run, _ = entry_of(SAMPLE, "r")
    with pytest.raises(DataCorruption, match="as the manifest says"):
        await all_rows(replace(run, length=length, tail_length=tail_length or run.tail_length), b"")


@given(TABLES)
def test_the_same_name_and_rows_give_the_same_bytes_however_they_are_taken(rows: list[Row]) -> None:
    encoder = RunEncoder("runs/1", block_bytes=64)
    for row in rows:
        encoder.add(row)
    run = encoder.finish()

    assert (run, b"".join(encoder.take())) == encode(rows)


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_the_shared_beginning_of_two_keys(shared: bytes, one: bytes, other: bytes) -> None:
    one, other = shared + one, shared + other
    length = common_prefix(one, other)

    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == len(one) == len(other)


def test_an_absent_key_hardly_ever_costs_a_block() -> None:
    """32 bits each: of 20,000 absent keys, the expected number that reads a block in vain is 0.0005."""
    run, data = encode(numbered(20_000, step=2), block_bytes=8 << 10)
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)

    assert not any(tail.find_block(b"key/%06d" % (n * 2 + 1)) is not None for n in range(20_000))


def test_a_large_tail_is_decoded_in_steps() -> None:
    """Of 1,000 blocks each, so that an event loop gets its turns."""
    run, data = encode(numbered(3500), block_bytes=1)
    *steps, tail = tail_in_steps(data[-run.tail_length :], run.name, run.length)

    assert steps == [None] * 3
    assert tail is not None
    assert tail.blocks == 3500


def test_a_tail_takes_little_more_than_four_bytes_a_row() -> None:
    run, data = encode(numbered(20_000), block_bytes=8 << 10)
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)

    assert tail.memory < 6 * run.summary.rows


@pytest.mark.anyio
async def test_damage_of_every_byte_is_found_with_its_place() -> None:
    run, data = entry_of(SAMPLE, "r")
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)
    starts = [*tail.offsets, run.length + 1]
    assert await all_rows(run, data) == [row for row in SAMPLE if row.value is not None]

    for at in range(run.length):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(DataCorruption) as caught:
            await all_rows(run, bytes(damaged))

        block = next((n for n in range(tail.blocks) if at < starts[n + 1]), tail.blocks)
        assert caught.value.file == "r"
        assert starts[block] <= caught.value.offset <= run.length
        assert block == tail.blocks or caught.value.offset == starts[block]


@pytest.mark.anyio
async def test_a_run_that_is_cut_anywhere_is_refused() -> None:
    run, data = entry_of(SAMPLE, "r")

    for length in range(run.length):
        with pytest.raises(DataCorruption) as caught:
            await all_rows(run, data[:length])
        assert caught.value.offset <= run.length


def with_block(data: bytes, tail: Tail, number: int, block: bytes) -> bytes:
    start, end = tail.offsets[number], tail.offsets[number + 1]
    assert len(block) == end - start
    return data[:start] + block + data[end:]


def block_of(data: bytes, tail: Tail, number: int) -> bytes:
    return data[tail.offsets[number] : tail.offsets[number + 1]]


@pytest.mark.anyio
@pytest.mark.parametrize("number, origin", [(1, 2), (2, 1)])
async def test_m2_a_sound_block_in_another_place_is_damage(number: int, origin: int) -> None:
    """As a disk leaves it that writes a block at the wrong place."""
    run, data = entry_of(numbered(30), "r")
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)

    moved = with_block(data, tail, number, block_of(data, tail, origin))
    with pytest.raises(DataCorruption) as caught:
        await all_rows(run, moved)
    assert (caught.value.file, caught.value.offset) == ("r", tail.offsets[number])


@pytest.mark.anyio
async def test_m2_a_sound_part_of_another_run_is_damage() -> None:
    """As a disk leaves it that loses a write: older bytes, which were right there."""
    run, data = entry_of(numbered(30, version=100), "r")
    older, older_data = entry_of(numbered(30, version=1), "older")
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)
    assert (run.length, run.tail_length) == (older.length, older.tail_length)

    for number in range(tail.blocks):
        stale = with_block(data, tail, number, block_of(older_data, tail, number))
        with pytest.raises(DataCorruption) as caught:
            await all_rows(run, stale)
        assert caught.value.offset == tail.offsets[number]
    renamed = replace(older, name="r")
    with pytest.raises(DataCorruption):
        await all_rows(renamed, older_data)


def faulty_run(rows: list[Row], name: str = "r") -> tuple[RunEntry, bytes]:
    """A run of one row per block, with right checksums, whose rows are not where its index has them."""
    encoder = RunEncoder(name, block_bytes=1)
    for first, row in zip(numbered(len(rows)), rows, strict=True):
        encoder.add(first)
        offset = encoder.length - len(encoder._pieces[-1])
        builder = BlockBuilder()
        builder.add(*row)
        encoder._pieces[-1] = builder.finish(name, offset)
    run = encoder.finish()
    return RunEntry.of(run, 1, 1), b"".join(map(bytes, encoder.take()))


@pytest.mark.anyio
async def test_m2_a_row_outside_its_block_s_keys_is_damage() -> None:
    """A right checksum does not prove it: a writer with a fault computes one too."""
    rows = numbered(3)
    run, data = faulty_run([rows[0], rows[2], rows[1]])
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)

    with pytest.raises(DataCorruption, match="outside the keys of its block") as caught:
        await all_rows(run, data)
    assert caught.value.offset == tail.offsets[1]


@pytest.mark.anyio
async def test_another_run_of_the_same_length_is_refused() -> None:
    run, _ = entry_of(SAMPLE, "r")
    other = entry_of([row._replace(version=row.version + 1) for row in SAMPLE], "r")[1]

    with pytest.raises(DataCorruption, match="not the one that the manifest names"):
        await all_rows(run, other)


@pytest.mark.anyio
async def test_the_format_of_unreleased_code_is_refused_as_such() -> None:
    """Its checksums had neither name nor offset, so all its runs looked damaged."""
    run, data = entry_of(SAMPLE, "r")
    sealed = bytearray(data[-Trailer.decode(data, run.name, run.length)[1] : -4])
    sealed[-8:-6] = (1).to_bytes(2, "big")
    unreleased = data[: -len(sealed) - 4] + sealed + crc32c(sealed).to_bytes(4, "big")

    with pytest.raises(StoreMismatch, match="format 1, which only unreleased"):
        await all_rows(run, unreleased)


@pytest.mark.anyio
async def test_a_newer_format_is_refused_as_such() -> None:
    """The version is covered by the checksum, so it is not damage."""
    run, data = entry_of(SAMPLE, "r")

    with pytest.raises(StoreMismatch, match="format 3"):
        await all_rows(run, of_newer_format(run, data))


def test_keys_must_ascend() -> None:
    encoder = RunEncoder("runs/1")
    encoder.add(Row(b"b", 1, b""))

    for key in (b"b", b"a"):
        with pytest.raises(ValueError, match="does not follow"):
            encoder.add(Row(key, 2, b""))


def test_a_run_keeps_the_largest_rows() -> None:
    rows = [Row(bytes([n]) * (8 << 10), 1, Random(n).randbytes(1 << 20)) for n in range(1, 4)]
    run, data = encode(rows, block_bytes=8 << 10)
    tail = decode_tail(data[-run.tail_length :], run.name, run.length)

    for row in rows:
        number = tail.find_block(row.key)
        assert number is not None
        assert find_in_block(data[tail.offsets[number] : tail.offsets[number + 1]], row.key) == row
    assert run.tail_length < (16 << 10) + 400  # separators are short; the key range is whole


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_the_end_of_a_prefix_divides_the_keys(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)

    assert key.startswith(prefix) == (prefix <= key and (end is None or key < end))


def test_a_block_whose_rows_do_not_ascend_is_malformed() -> None:
    builder = BlockBuilder()
    for key in (b"a", b"c", b"b"):
        builder.add(key, 1, b"")

    with pytest.raises(DecodeError, match="out of order"):
        list(rows_of_block(builder.finish("runs/1", 0)))


def test_a_run_list_refuses_overlaps() -> None:
    def run(name: str, first: int, last: int, *keys: bytes) -> RunEntry:
        return RunEntry.of(encode([Row(key, 1, b"") for key in keys], name=name)[0], first, last)

    RunList([run("a", 1, 3, b"a", b"c"), run("b", 1, 3, b"d"), run("c", 4, 4, b"a")])
    with pytest.raises(DataCorruption, match="cycles of two runs overlap"):
        RunList([run("a", 1, 3, b"a"), run("b", 3, 4, b"a")])
    with pytest.raises(DataCorruption, match="keys of two runs of one merge overlap"):
        RunList([run("a", 1, 3, b"a", b"c"), run("b", 1, 3, b"b")])
