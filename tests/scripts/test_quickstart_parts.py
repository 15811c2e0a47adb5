"""The parts of the quickstart that a healthy store never makes speak."""

from __future__ import annotations

import pytest

from quickstart_parts.checking import compare
from quickstart_parts.killing import Tally, Writers
from quickstart_parts.shares import EVENT_BYTES_MAX, QuickstartError, Share, digest_of, split_input

TEXT = b"one\ntwo\nthree\nfour\nfive\nsix\n"


def writers(shares: list[Share], acked: list[int]) -> Writers:
    return Writers([], shares, Tally(acked), lambda: None, lambda _: None)


def test_an_acked_event_that_is_gone_after_a_kill_is_told() -> None:
    shares = split_input(TEXT, 1)

    with pytest.raises(QuickstartError, match="segment quickstart/part-1, offset 8: 3 events were acked, but only 2 are there"):
        writers(shares, [3])._hear({"event": "ready", "acked": [2], "digest": digest_of(shares)})


def test_events_that_were_durable_and_not_acked_yet_are_fine() -> None:
    shares = split_input(TEXT, 1)
    parent = writers(shares, [3])
    parent._hear({"event": "ready", "acked": [5], "digest": digest_of(shares)})

    assert parent.acked_bytes() == len(b"one\ntwo\nthree\nfour\nfive\n")


def test_an_input_that_changed_meanwhile_is_told() -> None:
    with pytest.raises(QuickstartError, match="the input changed"):
        writers(split_input(TEXT, 1), [0])._hear({"event": "ready", "acked": [0], "digest": "another"})


@pytest.mark.parametrize(
    "found, what",
    [
        (b"twO\n", "offset 6: the store returned 0x4f where the input has 0x6f"),
        (TEXT[4:] + b"!", "0x21 where the input has its end"),
    ],
)
def test_the_first_byte_that_differs_is_told(found: bytes, what: str) -> None:
    (share,) = split_input(TEXT, 1)

    with pytest.raises(QuickstartError, match=what):
        compare(share, 4, found, "the store returned")


@pytest.mark.parametrize("segments", [1, 2])
def test_the_shares_are_the_input_cut_between_lines(segments: int) -> None:
    shares = split_input(TEXT, segments)

    assert b"".join(share.data for share in shares) == TEXT
    assert all(share.data.endswith(b"\n") and 0 < share.flushed_events < len(share.ends) for share in shares)


def test_a_line_that_is_too_long_for_an_event_is_several() -> None:
    (share,) = split_input(b"short\n" + b"x" * (EVENT_BYTES_MAX + 5) + b"\n", 1)

    assert list(share.ends) == [6, 6 + EVENT_BYTES_MAX, 6 + EVENT_BYTES_MAX + 6]


def test_too_little_input_for_that_many_segments_is_told() -> None:
    with pytest.raises(QuickstartError, match="fewer --segments"):
        split_input(TEXT, 5)
