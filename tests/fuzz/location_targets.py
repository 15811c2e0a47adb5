"""The decoders of where chunks are: locations in S3, the store's record of its location, names, and the range
that a service names; and of the command line's numbers."""

from __future__ import annotations

import typer

from fuzz.target import Target
from tierlog.actors.cli.options import whole_number
from tierlog.actors.folder.chunk_location import ChunkLocation, decode_location, encode_location
from tierlog.actors.folder.place import shared_location
from tierlog.actors.gc.rules import creator_of, parse_chunk_name
from tierlog.actors.settings.configuration import S3Config
from tierlog.storage_backends.base.chunk_storage import can_begin_chunk_name
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument, Unavailable
from tierlog.storage_backends.chunks.s3_location import S3Location, parse_location
from tierlog.storage_backends.chunks.s3_requests import _check_range as check_range

_LOCATION = ChunkLocation(
    "s3://bucket/some/prefix", S3Config(endpoint="http://127.0.0.1:9000", region="eu-central-1")
)
_NESTED = b"chunks = " + b"[" * 5_000


def _location(data: bytes) -> S3Location:
    return parse_location(data.decode("latin-1"))


def _begins(data: bytes) -> bool:
    return can_begin_chunk_name(data.decode("latin-1"))


def _chunk_origin(data: bytes) -> str:
    origin = parse_chunk_name(data.decode("latin-1"))
    assert origin is None or f"{origin.epoch:016x}".encode() in data
    return repr((origin, creator_of(data.decode("latin-1"))))


def _content_range(data: bytes) -> bool:
    check_range(data.decode("latin-1"), 10, 20, 20)
    return True


def _number(data: bytes) -> int:
    return whole_number(-7, 1 << 64)(data.decode("latin-1"))


LOCATION_TARGETS = [
    Target(
        "number on the command line",
        _number,
        [b"0", b"-7", b"4711"],
        errors=(typer.BadParameter,),
        canonical=False,
        encode=lambda number: str(number).encode(),
        hostile=[b"9" * 5_000, b"--1", b"-", b"\xb2"],
    ),
    Target(
        "location in S3",
        _location,
        [b"s3://bucket", b"s3://bucket/a/b"],
        errors=(InvalidArgument,),
        canonical=False,
        encode=lambda location: str(location).encode(),
    ),
    Target(
        "place of a store",
        lambda data: shared_location(data.decode("latin-1")),
        [b"s3://bucket/a/", b"bookkeeper://zk1:2181,[::1]:1/a/b"],
        errors=(InvalidArgument,),
        canonical=False,
        encode=lambda location: str(location).encode(),
        hostile=[b"bookkeeper://zk:" + b"9" * 5_000 + b"/a", b"bookkeeper://zk/a" + b"/a" * 5_000],
    ),
    Target(
        "record of the chunks' location",
        lambda data: decode_location(data, "chunks"),
        [
            encode_location(_LOCATION),
            encode_location(ChunkLocation()),
            encode_location(ChunkLocation("/shared")),
        ],
        errors=(DataCorruption,),
        encode=encode_location,
        canonical=False,
        hostile=[_NESTED],
    ),
    Target(
        "origin in a chunk's name",
        _chunk_origin,
        [b"containers/0000/0000000700000002/0000000000000007-0000000000000000-id", b"a"],
        errors=(),
        hostile=[b"epoch.0000000000000007", b"0x00000000000001-0-id", b"+000000000000001-0-id"],
    ),
    Target("beginning of a chunk's name", _begins, [b"containers/0000/", b"a"], errors=()),
    Target(
        "range that a service sent",
        _content_range,
        [b"bytes 10-29/100"],
        errors=(Unavailable,),
        hostile=[b"bytes 10-29/" + b"9" * 5_000],
    ),
]
