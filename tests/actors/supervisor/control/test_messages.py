"""The control protocol: valid messages are understood, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.supervisor.control.messages import (
    LINE_BYTES_MAX,
    VERSION,
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
    OwnersLines,
    Proof,
    ProtocolError,
    Proved,
    Refuse,
    Welcome,
    agreed_version,
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
        b'{"type":"heartbeat","sequence":1,"lag":NaN}',
        b'{"type":"heartbeat","sequence":1,"lag":1e400}',
        b'{"type":"heartbeat","sequence":1,"lag":0,"statistics":{"requests":{"puts":Infinity}}}',
        b'{"type":"heartbeat","sequence":1,"lag":0,"statistics":{"requests":{"puts":%d}}}' % 2**63,
        b'{"type":"hello","host":"a","pid":7,"url":"","served":{},"term":%d}' % 2**31,
        b'{"type":"hello","host":"a","pid":7,"url":"","served":{},"term":-1}',
        b'{"type":"hello","host":"a","pid":7,"url":"","served":{"0":%d},"term":0}' % 2**31,
        b'{"type":"hello","host":"a","pid":7,"url":"","served":{"%d":1},"term":0}' % 2**63,
        b'{"type":"hello","host":"a","pid":-1,"url":"","served":{},"term":0}',
        b'{"type":"opened","index":0,"request":1,"epoch":%d}' % 2**31,
        b'{"type":"fenced","index":0,"epoch":%d,"reason":""}' % 2**31,
        b'{"type":"welcome","term":%d,"heartbeat":1,"grace":1}' % 2**31,
        b'{"type":"welcome","term":1,"heartbeat":1,"grace":1e400}',
        *(b'{"type":"%s","term":%d,"index":0,"request":1}' % (kind, 2**31) for kind in (b"open", b"close")),
        b'{"type":"drain","term":%d}' % 2**31,
    ],
)
def test_malformed_messages_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode(line)


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a line of more than"):
        Lines().feed(b"x" * (LINE_BYTES_MAX + 1))


# --- versions -------------------------------------------------------------------------------------

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "control_lines_v1.jsonl"
RECORDED = GOLDEN.read_bytes().splitlines()
"""What the release before sends: its ``encode`` of each message that it knows. A new release adds a file of
its own and keeps this one for as long as ``OLDEST`` is its version."""
IN_RECORDS: list[Message] = [
    Hello("host-1", 4711, "http://127.0.0.1:9001", {0: 3, 7: 12}, 5),
    Heartbeat(9, 0.002, {"containers": {"0": {"epoch": 3, "wal_bytes": 1}}}, leaving=True),
    Opened(1, 2, 3),
    Failed(1, 2, "corrupt", "wal/0001/x at 512: broken"),
    Closed(4),
    Fenced(4, 9, "opened by another owner"),
    Ended(4, "poisoned", "torn"),
    Welcome(3, 0.1, 60.0),
    Refuse("process 7 is host-0 now"),
    Open(3, 1, 2),
    Close(3, 1, 2),
    Drain(3),
    Owners({0: "http://127.0.0.1:9001"}),
]


def test_v13_the_lines_of_the_release_before_are_understood() -> None:
    assert [decode(line) for line in RECORDED] == IN_RECORDS


@pytest.mark.parametrize("index", range(len(IN_RECORDS)), ids=lambda i: type(IN_RECORDS[i]).__name__)
def test_v13_what_is_sent_now_has_all_that_the_release_before_reads(index: int) -> None:
    now, before = json.loads(encode(IN_RECORDS[index])), json.loads(RECORDED[index])
    assert {name: now.get(name) for name in before} == before


def test_v13_owners_go_in_parts_of_short_lines_to_who_understands_them() -> None:
    """20,000 containers in one line would be longer than a line may be."""
    url = f"https://{'a' * 253}.example.org:65535"
    known = dict.fromkeys(range(20_000), url)
    lines = OwnersLines(lambda: known, {7: "", 8: url})

    whole = [decode(line) for line in lines.of(2, is_new=True)]
    assert max(len(line) for line in lines.of(2, is_new=True)) < LINE_BYTES_MAX
    assert [each.is_part for each in whole if isinstance(each, Owners)] == [False, *[True] * 9]
    assert {
        index: found for each in whole if isinstance(each, Owners) for index, found in each.urls.items()
    } == known
    assert [decode(line) for line in lines.of(2, is_new=False)] == [Owners({7: "", 8: url}, True)]
    assert [decode(line) for line in lines.of(1, is_new=False)] == [Owners(known)]


def test_v13_who_knows_all_owners_is_sent_nothing_until_one_changes() -> None:
    lines = OwnersLines(lambda: {0: "http://h"}, {})
    assert [lines.of(version, is_new=False) for version in (1, 2)] == [(), ()]
    assert [decode(line) for line in OwnersLines(dict, {}).of(2, is_new=True)] == [Owners({})]


def test_why_containers_stay_closed_goes_to_new_hosts_and_with_what_has_changed() -> None:
    why = dict.fromkeys(range(1000), "\N{GRINNING FACE}" * 1000)
    for is_new, changes in ((True, {}), (False, dict.fromkeys(why, ""))):
        lines = OwnersLines(dict, changes, lambda: why).of(2, is_new=is_new)
        assert max(map(len, lines)) <= LINE_BYTES_MAX
        found = [decode(line) for line in lines]
        assert all(isinstance(each, Owners) for each in found)
        absences = {index: text for each in found for index, text in each.absences.items()}  # type: ignore[union-attr]
        assert absences == {index: text[:300] for index, text in why.items()}
    [line] = OwnersLines(dict, {1: ""}, lambda: why).of(1, is_new=False)
    assert decode(line) == Owners({}), "of the release before, in one line"
    assert [decode(each) for each in OwnersLines(dict, {1: ""}, lambda: {2: "x"}).of(2, is_new=False)] == [
        Owners({1: ""}, True)
    ]


def test_v13_a_host_of_the_release_before_speaks_one_version_and_a_new_one_can_be_asked_for_it() -> None:
    hello = decode(RECORDED[0])
    assert isinstance(hello, Hello)
    assert agreed_version(hello) == 1
    assert agreed_version(hello, oldest=1, newest=2) == 1
    # As a supervisor of the release before decides, which compares ``version`` with its own.
    assert Hello("a", 1, "", {}, 0, newest=VERSION).version == 1


@pytest.mark.parametrize(
    ("host", "supervisor", "agreed"),
    [((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2), ((3, 3), (2, 3), 3), ((2, 4), (1, 9), 4)],
)
def test_v13_both_speak_the_newest_version_that_they_share(
    host: tuple[int, int], supervisor: tuple[int, int], agreed: int
) -> None:
    hello = Hello("a", 1, "", {}, 0, version=host[0], newest=host[1])
    assert agreed_version(hello, *supervisor) == agreed


@pytest.mark.parametrize(("host", "supervisor"), [((1, 2), (3, 4)), ((3, 4), (1, 2)), ((2, 0), (1, 1))])
def test_v13_who_shares_none_is_refused_with_both_ranges(
    host: tuple[int, int], supervisor: tuple[int, int]
) -> None:
    hello = Hello("a", 1, "", {}, 0, version=host[0], newest=host[1])
    with pytest.raises(ProtocolError) as raised:
        agreed_version(hello, *supervisor)
    assert f"from version {host[0]} to {max(host)}, the supervisor from " in str(raised.value)
    assert "upgrade the older one" in str(raised.value)
