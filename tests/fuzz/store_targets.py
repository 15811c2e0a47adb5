"""The decoders of the store's own records: fields, identity, owners, claims, chunk metadata, and numbers
inside keys and names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar, cast
from unittest.mock import patch

import attrs
from hypothesis import strategies as st
from simulation.legacy import format_concat

from fuzz.file_targets import REFUSED, sealed
from fuzz.target import Target
from support.memory_files import run_on
from support.old_backups import encode_manifest, encode_segment
from support.operations import CONSISTENT_ELEMENT, ELEMENT, consistent_elements, element_of, elements
from tierlog.actors.container.cached_chunks import _epoch_of
from tierlog.actors.container.claims import claim_name, claim_prefix, decode_claim, encode_claim, list_claims
from tierlog.actors.container.closures import ClosureLog
from tierlog.actors.container.confirmation import claim_records
from tierlog.actors.container.owner import Identity
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.actors.folder.identity import StoreIdentity, read_identity
from tierlog.actors.folder.identity import decode as decode_identity
from tierlog.actors.folder.identity import encode as encode_identity
from tierlog.actors.folder.lock_files import Owner, decode_owner, encode_owner
from tierlog.actors.legacy_rolling.file_claims import FileClaim
from tierlog.actors.legacy_rolling.header import (
    LegacyChunk,
    LegacyHeader,
    format_chunks,
    format_header,
    is_legacy_file,
    parse_header,
)
from tierlog.actors.maintenance.backup_objects import (
    BackupObject,
    Manifest,
    ReleasedFile,
    SegmentBackup,
    decode_manifest,
    decode_segment,
)
from tierlog.journal.manifest import element as element_module
from tierlog.journal.manifest.chain import element_name, journal_prefix, list_elements, read_element
from tierlog.journal.manifest.element import Element
from tierlog.journal.manifest.pin_record import PinRecord
from tierlog.journal.manifest.store_record import StoreRecord
from tierlog.journal.operations.log_element import LogElement
from tierlog.journal.operations.segment_image import SegmentImage, SegmentStatus, WriterState
from tierlog.storage_backends.base.backups import check_backup_name
from tierlog.storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from tierlog.storage_backends.base.codec import DecodeError, Decoder, Encoder, hex_number
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch
from tierlog.storage_backends.base.files import FileHandle, Read
from tierlog.storage_backends.base.sorted_dict import SortedDict
from tierlog.storage_backends.chunks import cached_blocks
from tierlog.storage_backends.segments.records import (
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    IndexRecord,
    ReleasedRecord,
    SegmentRecord,
    chunk_key,
    index_key,
    segment_key,
    segment_of_key,
)
from tierlog.storage_backends.segments.records.claim import CLAIM_PREFIX, ClaimRecord, claim_key
from tierlog.storage_backends.segments.records.imported import ImportedRecord
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from tierlog.storage_backends.segments.transaction import decode_record
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList

T = TypeVar("T")
u64 = st.integers(0, (1 << 64) - 1)
name = st.text(max_size=12)

# --- fields --------------------------------------------------------------------------------------

_KINDS = ("u8", "u16", "u32", "u64", "i64", "flag", "blob", "text")
_KIND_COUNT = 8


def _decode_fields(data: bytes) -> tuple[bytes, list[object]]:
    """Eight bytes that name kinds of fields, then the fields."""
    fields = Decoder(data)
    kinds = bytes(fields.raw(_KIND_COUNT))
    values = [getattr(fields, _KINDS[kind % len(_KINDS)])() for kind in kinds]
    fields.finish()
    return kinds, values


def _encode_fields(found: tuple[bytes, list[Any]]) -> bytes:
    out = Encoder().raw(found[0])
    for kind, value in zip(*found, strict=True):
        field = _KINDS[kind % len(_KINDS)]
        getattr(out, "u8" if field == "flag" else field)(value)
    return out.finish()


_FIELDS = [
    Target(
        "fields",
        _decode_fields,
        [_encode_fields((bytes(range(8)), [1, 2, 3, 4, -5, True, b"blob", "größe"]))],
        encode=_encode_fields,
        hostile=[
            b"\7" * 8 + b"\0\3\xed\xa0\x80" + b"\0\0" * 7,
            b"\6" * 8 + b"\xff" * 8,
            b"\7" * 8 + b"\0\2\xc0\x80" + b"\0\0" * 7,
        ],
    ),
    Target(
        "hex number",
        lambda data: hex_number(data.decode("latin-1")),
        [b"00000000000000ff"],
        encode=lambda number: f"{number:016x}".encode(),
        hostile=[
            b"0x000000000000ff",
            b"+00000000000000f",
            b"0000_0000_0000_f",
            b" 0000000000000ff",
            b"00000000000000FF",
            b"00000000000000ff\n",
        ],
    ),
]

# --- identity, owners, claims --------------------------------------------------------------------

_STORE = StoreIdentity(bytes(range(16)), bytes(range(16, 32)), 4, 1_700_000_000_000)
_OWNER = Owner("name", 4711, "größe", 1_700_000_000_000)
_CLAIM = Identity(b"s" * 16, b"l" * 16, b"o" * 16, Fingerprint(b"f" * 16, "here:/data/wal"))
_LAST = encode_claim(_CLAIM)
_EARLIER = sealed(_LAST[:4] + b"\2" + _LAST[5:-4])
"""A claim of an earlier version."""


class _OneObject:
    """Long-term storage as far as reading system objects needs it: one object."""

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._content = content

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        yield ChunkInfo(self._name, len(self._content))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]


def _metadata(key: str, value: bytes) -> SortedDict[str, tuple[int, bytes]]:
    metadata: SortedDict[str, tuple[int, bytes]] = SortedDict()
    metadata[key] = 1, value
    return metadata


def _storage(name: str, content: bytes) -> ChunkStorage:
    return cast("ChunkStorage", _OneObject(name, content))


def _answer_of(reading: Coroutine[Any, Any, T]) -> T:
    try:
        reading.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("one object in memory leaves nothing to wait for")


def _element_numbers(data: bytes) -> list[int]:
    numbers = _answer_of(list_elements(_storage(journal_prefix(3) + data.decode("latin-1"), b""), 3))
    assert [f"{n:016x}".encode() for n in numbers] in ([], [data])
    return numbers


def _consistent_element(body: bytes) -> Element:
    """As code that publishes such elements decodes it."""
    with patch.object(element_module, "_NEWEST", 5):
        return Element.decode(sealed(body))


def _identity_in(name: str, content: bytes) -> tuple[int, Identity]:
    (claim,) = _answer_of(list_claims(_storage(name, content), 3))
    return claim.epoch, claim.identity


_IDENTITY = encode_identity(_STORE)
_IDENTITIES = [
    Target(
        "store identity",
        lambda data: run_on({"wal/store": data}, read_identity("wal")),
        [_IDENTITY],
        errors=REFUSED,
        checksummed=True,
        genuine=lambda found: found == _STORE,
    ),
    Target(
        "store identity behind a right checksum",
        lambda body: decode_identity(sealed(body), "store"),
        [_IDENTITY[:-4]],
        errors=REFUSED,
        encode=lambda identity: encode_identity(identity)[:-4],
        values=st.builds(
            StoreIdentity,
            st.binary(min_size=16, max_size=16),
            st.binary(min_size=16, max_size=16),
            st.integers(0, 99),
            u64,
        ),
    ),
    Target(
        "owner file",
        lambda data: decode_owner("name", data, alive=True),
        [encode_owner(_OWNER)],
        errors=(),
        encode=encode_owner,
        canonical=False,  # JSON has blanks, and a torn file is an unknown owner
        values=st.builds(
            Owner, st.just("name"), st.integers(0, (1 << 63) - 1), name, st.integers(0, (1 << 63) - 1)
        ),
        hostile=[
            b"[" * 4096,
            b'{"pid": Infinity, "host": "h", "since_ms": 1}',
            b'{"pid": 1, "host": "\\ud800", "since_ms": 1}',
            b'{"pid": 1, "host": "h", "since_ms": ' + b"9" * 4000 + b"}",
            b"null",
        ],
    ),
    Target("claim", lambda data: decode_claim(data).identity, [_EARLIER], checksummed=True),
    Target(
        "claim behind a right checksum",
        lambda body: decode_claim(sealed(body)),
        [_EARLIER[:-4], _LAST[:4] + b"\1" + _LAST[5:53]],
    ),
    Target(
        "claim records",
        lambda data: claim_records(_metadata(claim_key(7), data)),
        [ClaimRecord(b"o" * 16).encode()],
        errors=(DataCorruption,),
    ),
    Target(
        "claim record's key",
        lambda data: claim_records(
            _metadata(CLAIM_PREFIX + data.decode("latin-1"), ClaimRecord(bytes(16)).encode())
        ),
        [b"00000000000000ff"],
        errors=(DataCorruption,),
        encode=lambda known: claim_key(*known).removeprefix(CLAIM_PREFIX).encode(),
    ),
    Target(
        "unconfirmed record",
        UnconfirmedRecord.decode,
        [UnconfirmedRecord(Reason.ADOPTED, "there:/copy/wal").encode()],
        encode=UnconfirmedRecord.encode,
        hostile=[b"\x08\x01\x09\0\0"],
    ),
    Target("element", Element.decode, [ELEMENT.encode()], encode=Element.encode, checksummed=True),
    Target(
        "element behind a right checksum",
        lambda body: Element.decode(sealed(body)),
        [
            attrs.evolve(ELEMENT, runs=runs).encode()[:-4]
            for runs in (ELEMENT.runs, RunList(), RunList((), 9))
        ],
        encode=lambda element: element.encode()[:-4],
        values=elements,
    ),
    Target(
        "consistent element behind a right checksum",
        _consistent_element,
        [CONSISTENT_ELEMENT.encode()[:-4]],
        encode=lambda element: element.encode()[:-4],
        values=consistent_elements,
    ),
    Target(
        "element after another one",
        lambda body: LogElement.after(LogElement(ELEMENT.encode()), sealed(body)).element,
        [ELEMENT.encode()[:-4]],
        encode=lambda element: element.encode()[:-4],
        values=elements,
    ),
    Target(
        "element in long-term storage",
        lambda data: (
            _answer_of(read_element(_storage(element_name(3, ELEMENT.n), data), 3, ELEMENT.n)).element
        ),
        [element_of(3).encode()],
        errors=(DataCorruption,),
        genuine=lambda found: found == element_of(3),
    ),
    Target(
        "element name",
        _element_numbers,
        [b"00000000000000ff"],
        errors=(),
        hostile=[b"7", b"0x07", b"-1", b"0000000000000007.bak"],
    ),
    Target(
        "store record",
        StoreRecord.decode,
        [StoreRecord(b"s" * 16, 4).encode()],
        encode=StoreRecord.encode,
        errors=(DecodeError, StoreMismatch),
        checksummed=True,
    ),
    Target(
        "store record behind a right checksum",
        lambda body: StoreRecord.decode(sealed(body)),
        [StoreRecord(b"s" * 16, 4).encode()[:-4]],
        encode=lambda record: record.encode()[:-4],
        errors=(DecodeError, StoreMismatch),
    ),
    Target(
        "claim in long-term storage",
        lambda data: _identity_in(claim_name(3, 7), data),
        [_EARLIER],
        errors=(DataCorruption,),
        genuine=lambda found: found == (7, _CLAIM),
    ),
    Target(
        "claim name",
        lambda data: _identity_in(claim_prefix(3) + data.decode("latin-1"), _EARLIER)[0],
        [b"00000000000000ff"],
        errors=(DataCorruption,),
        encode=lambda epoch: claim_name(3, epoch).removeprefix(claim_prefix(3)).encode(),
        hostile=[b"7", b"0x07", b"-1", b"0000000000000007.bak"],
    ),
]

# --- chunk metadata ------------------------------------------------------------------------------

_SEGMENT = SegmentRecord(7 << 32 | 2, 4106, 17, "first", "last", 10, 3000, 3, True, 7, 1 << 20)
_CHUNK = ChunkRecord("containers/0001/c", 0, "next").grown([b"x" * 1500, b"y" * 600], [0, 1500])
_DEFERRED_WORK = DeferredWorkRecord(
    DeferredWorkKind.SPLICE, 7 << 32 | 3, 7 << 32 | 2, 300, 90, 64, 350, "containers/0001/c", 0, 7
)
_INDEX = IndexRecord(7 << 32 | 2, 1 << 24, "containers/0001/c", 1000)
_RELEASED = ReleasedRecord("app/old$offset.0", 300)
_SEGMENTS = st.builds(SegmentRecord, u64, u64, u64, name, name, u64, u64, u64, st.booleans(), u64, u64)


def _read_chunk_record(data: bytes) -> tuple[ChunkRecord, list[int], list[int]]:
    record = decode_record(ChunkRecord, _CHUNK.key, data)
    grown = record.grown([b"more"], [record.length])
    assert not grown.broken() or record.length + 4 >= 1 << 64
    return record, list(record.crcs), list(record.starts)


_RECORDS = [
    Target(
        "segment record",
        SegmentRecord.decode,
        [_SEGMENT.encode()],
        encode=SegmentRecord.encode,
        values=_SEGMENTS,
    ),
    Target(
        "chunk record",
        ChunkRecord.decode,
        [_CHUNK.encode()],
        encode=ChunkRecord.encode,
        values=st.builds(ChunkRecord, name, u64, name, st.binary(max_size=12), st.binary(max_size=24)),
    ),
    Target(
        "index record",
        IndexRecord.decode,
        [_INDEX.encode()],
        encode=IndexRecord.encode,
        values=st.builds(IndexRecord, u64, u64, name, u64),
    ),
    Target(
        "deferred work record",
        DeferredWorkRecord.decode,
        [_DEFERRED_WORK.encode()],
        encode=DeferredWorkRecord.encode,
        values=st.builds(
            DeferredWorkRecord,
            st.sampled_from(DeferredWorkKind),
            u64,
            u64,
            u64,
            u64,
            u64,
            u64,
            name,
            u64,
            u64,
            extra=st.binary(max_size=9),
        ),
        hostile=[
            _DEFERRED_WORK.encode()[:2] + b"\0" + _DEFERRED_WORK.encode()[3:],
            _DEFERRED_WORK.encode()[:2] + b"\x05" + _DEFERRED_WORK.encode()[3:],
        ],
    ),
    Target(
        "released record",
        ReleasedRecord.decode,
        [_RELEASED.encode()],
        encode=ReleasedRecord.encode,
        values=st.builds(ReleasedRecord, name, u64, extra=st.binary(max_size=9)),
    ),
    Target(
        "released record under its key",
        lambda data: decode_record(ReleasedRecord, _RELEASED.key, data),
        [_RELEASED.encode()],
        errors=(DataCorruption,),
        encode=ReleasedRecord.encode,
    ),
    Target(
        "segment record under its key",
        lambda data: decode_record(SegmentRecord, segment_key(_SEGMENT.segment), data),
        [_SEGMENT.encode()],
        errors=(DataCorruption,),
        encode=SegmentRecord.encode,
    ),
    Target(
        "chunk record under its key",
        _read_chunk_record,
        [_CHUNK.encode()],
        errors=(DataCorruption,),
        encode=lambda found: found[0].encode(),
    ),
    Target(
        "index record under its key",
        lambda data: decode_record(IndexRecord, index_key(_INDEX.segment, _INDEX.offset), data),
        [_INDEX.encode()],
        errors=(DataCorruption,),
        encode=IndexRecord.encode,
    ),
    Target(
        "segment key",
        lambda data: segment_of_key(data.decode("latin-1")),
        [segment_key(7 << 32 | 2).encode()],
        encode=lambda sid: segment_key(sid).encode(),
        hostile=[b"s:1", b"s:0x00000000000001", chunk_key("s:").encode()],
    ),
]

# --- the legacy layout ---------------------------------------------------------------------------

_SOURCE = LegacyHeader(7, (LegacyChunk(0, "b$offset.0"),))
_HEADER = format_header(LegacyHeader(100, (LegacyChunk(0, "a$offset.0"), LegacyChunk(100, "a$offset.100"))))
_CONCATENATED = (
    _HEADER
    + format_concat(1, 150)
    + format_header(_SOURCE)
    + format_chunks([LegacyChunk(157, "a$offset.157")])
)

_FILE_CLAIM = FileClaim("app/source", "app/target").encode()

_LEGACY = [
    Target(
        "header of the legacy layout",
        lambda data: parse_header(data, "a$header"),
        [_HEADER, _CONCATENATED],
        errors=(DataCorruption,),
        encode=format_header,
        # Keys have no case, numbers may have leading zeros, and a concat is written as its result.
        canonical=False,
        values=st.builds(
            lambda size, starts: LegacyHeader(
                size, tuple(LegacyChunk(start, f"a$offset.{start}") for start in sorted(starts))
            ),
            st.integers(1, (1 << 63) - 1),
            st.lists(st.integers(0, (1 << 63) - 1), max_size=4),
        ),
        hostile=[
            b"",
            b"&",
            b"=&",
            b"maxsize=1&concat=9999999999999999999@1&",
            "maxsize=٣&".encode(),
            b"maxsize=1&0=a&1=\xc0\x80&",
        ],
    ),
    Target(
        "file claim",
        lambda data: FileClaim.decode(data)[:2],
        [_FILE_CLAIM, b"app/source\0app/target"],
        encode=lambda names: FileClaim(*names).encode(),
        canonical=False,  # the one without a checksum
    ),
    Target(
        "file claim behind a right checksum",
        lambda body: FileClaim.decode(sealed(_FILE_CLAIM[:5] + body)),
        [_FILE_CLAIM[5:-4]],
        encode=lambda claim: claim.encode()[5:-4],
        values=st.builds(FileClaim, name, name, st.just(True)),
    ),
    Target(
        "file of the legacy layout",
        lambda data: is_legacy_file(data.decode("latin-1")),
        [b"a$header", b"a$offset.100"],
        errors=(),
    ),
    Target(
        "imported name",
        ImportedRecord.decode,
        [ImportedRecord(7 << 32 | 2).encode()],
        encode=ImportedRecord.encode,
        values=st.builds(ImportedRecord, u64),
    ),
]

# --- backups -------------------------------------------------------------------------------------

_BACKED_UP = SegmentBackup(
    3,
    5,
    SegmentImage(
        7,
        SegmentStatus.LIVE,
        True,
        2110,
        12,
        10,
        "app/e",
        (("a", 1),),
        ((b"w", WriterState(1, 2, 20)),),
        (b"x",),
    ),
    ((10, _CHUNK),),
)
_MANIFEST = Manifest(
    b"s" * 16, 1_700_000_000_000, (4, 5), True, 1, 2, 20, 5, 1, ("app/old",), (BackupObject("o", 99, 7),)
)
_WITH_RELEASED = attrs.evolve(_MANIFEST, released=(ReleasedFile(1, _RELEASED),))
_WITHOUT_ANY = encode_manifest(_WITH_RELEASED)[:4] + b"\2" + encode_manifest(_MANIFEST)[5:-4] + bytes(4)
"""A manifest of the version for released files, without any."""


def _backup_name(data: bytes) -> str | None:
    try:
        return check_backup_name(data.decode("latin-1"))
    except InvalidArgument:
        return None


def _pin_record(data: bytes) -> PinRecord:
    """The head of a record, without elements behind it."""
    record = PinRecord.decode(data, "monday")
    if len(data) != record.begins[0]:
        raise DecodeError("there is more")
    return record


def _cached(data: bytes) -> bytes | None:
    """What a file of the chunk cache with one block, whose entry is in front of it, has of a chunk."""
    program, answer = cached_blocks._read_verified(cast("FileHandle", None), "chunk", 0, 5), None
    try:
        while True:
            call = program.send(answer)
            at = call.offset if isinstance(call, Read) else 0
            begin = 8 if at else 0  # behind the entry
            answer = data[begin : begin + call.size] if isinstance(call, Read) else None
    except StopIteration as end:
        return bytes(end.value) if end.value else None


_CHUNK_CACHE = [
    Target(
        "block of the chunk cache",
        _cached,
        [cached_blocks._entry("chunk", 0, [b"bytes"]) + b"bytes"],
        errors=(),
        checksummed=True,
    ),
    Target(
        "epoch in the name of a cached chunk",
        lambda data: _epoch_of(data.decode("latin-1")),
        [b"containers/0000/000000000000002a-000000000000001b", b"containers/0000/x"],
        errors=(),
    ),
]


def _is_held(data: bytes) -> bool:
    """Whether a row belongs to a segment that is held back: the first 8 bytes of ``data`` are its version."""
    log = ClosureLog()
    log.note(1, 7)
    version = int.from_bytes(data[:8], "big")
    return log.is_held({7}, Row(data[8:], version, data[:8]))


_CLOSURES = [
    Target(
        "segment of a row",
        _is_held,
        [bytes(8) + b"a:0000000000000007:name", bytes(7) + b"\7n:app/a", bytes(7) + b"\1c:chunk"],
        errors=(),
    ),
]

_BACKUPS = [
    Target(
        "segment of a backup",
        lambda data: decode_segment(data, "object"),
        [encode_segment(_BACKED_UP)],
        errors=(DataCorruption,),
        encode=encode_segment,
        checksummed=True,
    ),
    Target(
        "segment of a backup behind a right checksum",
        lambda body: decode_segment(sealed(body), "object"),
        [encode_segment(_BACKED_UP)[:-4]],
        errors=(DataCorruption,),
        encode=lambda backup: encode_segment(backup)[:-4],
    ),
    Target(
        "manifest of a backup",
        lambda data: decode_manifest(data, "object"),
        [encode_manifest(_MANIFEST), encode_manifest(_WITH_RELEASED)],
        errors=(DataCorruption,),
        encode=encode_manifest,
        checksummed=True,
    ),
    Target(
        "manifest of a backup behind a right checksum",
        lambda body: decode_manifest(sealed(body), "object"),
        [encode_manifest(_MANIFEST)[:-4], encode_manifest(_WITH_RELEASED)[:-4]],
        errors=(DataCorruption,),
        encode=lambda manifest: encode_manifest(manifest)[:-4],
        hostile=[_WITHOUT_ANY],
    ),
    Target(
        "record of a backup",
        _pin_record,
        [PinRecord("monday", b"s" * 16, 1_700_000_000_000, ((300, 7), (400, 8))).encode()],
        encode=PinRecord.encode,
    ),
    Target(
        "name of a backup", _backup_name, [b"20261121T105720Z"], errors=(), encode=lambda name: name.encode()
    ),
]

STORE_TARGETS = [*_FIELDS, *_IDENTITIES, *_RECORDS, *_LEGACY, *_CLOSURES, *_CHUNK_CACHE, *_BACKUPS]
