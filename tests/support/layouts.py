"""Segments of chunks with chosen lengths, and the check of their index."""

from __future__ import annotations

from support.chunked import SID, Owner
from tierlog.storage_backends.segments.records import IndexRecord

TEXT = bytes(range(1, 200))


async def build(owner: Owner, sizes: list[int], sid: int = SID) -> bytes:
    """A segment of chunks with exactly these lengths, each made by an owner of its own."""
    length = 0
    for size in sizes:
        await owner.write(length, TEXT[length : length + size], sid=sid)
        owner = await owner.tier2.owner()
        length += size
    return TEXT[:length]


async def check_index(owner: Owner, spacing: int, sid: int = SID) -> None:
    """There is an index record for each multiple inside the chunks, and no other."""
    expected = {}
    for start, record in await owner.storage.chunks(sid):
        for offset in range(max(spacing, -(-start // spacing) * spacing), start + record.length, spacing):
            expected[offset] = IndexRecord(sid, offset, record.name, start)
    entries = owner.tier2.metadata.entries
    found = [IndexRecord.decode(entries[key][1]) for key in entries if key.startswith(f"i:{sid:016x}")]
    assert {record.offset: record for record in found} == expected
