"""The Spark bridge: framed events, and what Spark and its users say in texts: options and a task's local
properties."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from fuzz.target import Target
from tierlog.spark_bridge import events
from tierlog.spark_bridge.identity import BATCH_ID, QUERY_ID, RUN_ID, Identity, next_try, stream_identity
from tierlog.spark_bridge.options import Options, parse_options
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import InvalidArgument, Unsupported
from tierlog.storage_backends.base.transactions import TransactionInfo, TransactionState


def _iterated(data: bytes) -> list[bytes]:
    """The whole frames that the bytes begin with, found in three ways that must agree."""
    found = list(events.iterate(data, 7))
    boundaries = list(events.boundaries(data))
    assert [event.offset - 7 for event in found] == boundaries[:-1]
    assert [event.end - 7 for event in found] == boundaries[1:]
    assert all(
        events.frame_bytes(data[start : start + events.HEADER_BYTES]) == end - start
        for start, end in pairwise(boundaries)
    )
    return [event.data for event in found]


def _texts(data: bytes) -> dict[str, str]:
    """Lines of ``key=value``."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _options(data: bytes) -> Options:
    return parse_options({"endpoint": "http://127.0.0.1:1", **_texts(data)})


_PLAIN = parse_options({"endpoint": "http://127.0.0.1:1", "path": "t"})


def _identity(data: bytes) -> Identity:
    return stream_identity(_PLAIN, "t", _texts(data).get)


def _try(data: bytes) -> str:
    """The next try of a write ``a``, of which the tries in the lines are known."""
    known = [
        TransactionInfo(line, "t", TransactionState.ABORTED, None, 1.0, 1.0, "", None, 0)
        for line in data.decode().split("\n")
    ]
    return next_try("a", "t", known)


SPARK_TARGETS = [
    Target(
        "events",
        events.decode,
        [events.encode([b"first", b"", b"x" * 300]), b""],
        errors=(DecodeError,),
        encode=events.encode,
        values=st.lists(st.binary(max_size=64)),
        hostile=[b"\xff\xff\xff\xff", b"\0\0\0\5abc", b"\0" * 4096],
    ),
    Target(
        "whole frames",
        _iterated,
        [events.encode([b"first", b""]) + b"\0\0\0\5ab", events.encode([b"equal"] * 17)],
        hostile=[b"\x01\xff\xff\xfc", b"\x02\0\0\0"],
    ),
    Target(
        "data source options",
        _options,
        [
            (
                b'segment=app/events\nstartingoffsets={"app/events": '
                b"7}\nendingoffsets=latest\nminpartitions=4\nbatchbytes=1 MiB"
            ),
            b"path=app/events\ndelivery=at-least-once\nrows=python\ntxnlease=2 h\nfailondataloss=false",
            b"segmentprefix=app/\nmaxbytespertrigger=4096\nincludemetadata=false\ncalltimeout=5 s",
            b"path=a\ntxnappid=me\ntxnversion=7\ntxnid=load-1\ncreatesegment=true\nreadbytes=1 MiB",
        ],
        errors=(InvalidArgument,),
        hostile=[
            b"path=a\nstartingoffsets=" + b"[" * 5000,
            b'path=a\nstartingoffsets={"a": 1' + b"0" * 400 + b"}",
            b"path=a\nminpartitions=" + b"9" * 5000,
            "path=a\nminpartitions=٤".encode(),
            "path=a\nbatchbytes=²".encode(),
            b"path=a\ntxnlease=1" + b"0" * 400 + b" h",
            b"path=a\ntxnappid=\xff",
            b"endpoint=http://[::1\npath=a",
            b"endpoint=http://a:99999\npath=a",
        ],
        bytes_per_byte=4096,
    ),
    Target(
        "micro-batch",
        _identity,
        [f"{QUERY_ID}=11111111-aaaa\n{BATCH_ID}=7\n{RUN_ID}=22222222-bbbb".encode()],
        errors=(Unsupported,),
        hostile=[
            f"{QUERY_ID}=1\n{BATCH_ID}={number}\n{RUN_ID}=2".encode()
            for number in ("9" * 5000, "٤", "²", "-1", str(1 << 63))
        ],
    ),
    Target(
        "tries of a write",
        _try,
        [b"a:1\na:2", b"b:1"],
        errors=(UnicodeDecodeError, InvalidArgument),
        hostile=["a:²".encode(), "a:٤".encode(), b"a:" + b"9" * 95],
    ),
]
