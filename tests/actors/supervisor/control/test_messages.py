"""The control protocol: valid messages are understood, and nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.supervisor.control.messages import (
    LINE_BYTES_MAX,
    Challenge,
    Close,
    Closed,
    Drain,
    Ended,
    Failed,
    Fenced,
    Heartbeat,
    Hello,
    Lines,
    Message,
    Open,
    Opened,
    Owners,
    Proof,
    ProtocolError,
    Proved,
    Refuse,
    Welcome,
    decode,
    encode,
)

MESSAGES: list[Message] = [
    Challenge("0a" * 16),
    Proof("0a" * 16, "1b" * 32),
    Proved("2c" * 32),
    Hello("host-1", 4711, "http://127.0.0.1:9001", {0: 3, 7: 12}, 5),
    Hello("a", 4711, "http://127.0.0.1:9001", {}, 5, machine="node-a", instance="0a" * 16),
    Heartbeat(9, 0.002, {"containers": [{"container": 0, "state": "active"}]}),
    Opened(1, 2, 3),
    Failed(1, 2, "corrupt", "wal/0001/x at 512: broken\nframe"),
    Closed(4),
    Fenced(4, 9, "opened by another owner"),
    Ended(4, "poisoned", "torn"),
    Welcome(3, 0.1, 60.0),
    Refuse("an older version"),
    Open(3, 1, 2),
    Close(3, 1, 2),
    Drain(3),
    Owners({0: "http://127.0.0.1:9001"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_decodes_to_itself(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(st.lists(st.integers(1, 40)))
def test_messages_are_put_together_from_pieces_of_any_size(sizes: list[int]) -> None:
    stream, lines, received = b"".join(map(encode, MESSAGES)), Lines(), []
    for size in sizes:
        received += lines.feed(stream[:size])
        stream = stream[size:]
    received += lines.feed(stream)
    assert received == MESSAGES


def test_messages_of_a_newer_version_may_have_more_fields() -> None:
    document = json.loads(encode(Closed(4))) | {"why": "because"}
    assert decode(json.dumps(document).encode()) == Closed(4)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b'{"type":"closed"}',
        b'{"type":"explode"}',
        b'{"type":"closed","index":"x"}',
        b"\xff",
    ],
)
def test_malformed_messages_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode(line)


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a line of more than"):
        Lines().feed(b"x" * (LINE_BYTES_MAX + 1))
