"""Elements of the chain (rules J1, J2): permanent bytes, round trips, and damage that is always noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from msgspec.structs import replace

from support.operations import (
    CONSISTENT_ELEMENT,
    ELEMENT,
    ELEMENT_WITH_SEGMENTS,
    ELEMENT_WITH_TRANSACTIONS,
    SID,
    consistent_elements,
    elements,
)
from tierlog.journal.manifest import element as element_module
from tierlog.journal.manifest.element import (
    CONSISTENT,
    NUMBER_MAX,
    Element,
    Pin,
    Position,
    position_of,
    runs_at,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError, Encoder
from tierlog.storage_backends.base.ids import EPOCH_MAX
from tierlog.storage_backends.sorted_runs.run_list import RunList

_FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = bytes.fromhex((_FOLDER / "element_v2.hex").read_text())
GOLDEN_WITH_SEGMENTS = bytes.fromhex((_FOLDER / "element_v3.hex").read_text())
GOLDEN_WITH_TRANSACTIONS = bytes.fromhex((_FOLDER / "element_v4.hex").read_text())
GOLDEN_CONSISTENT = bytes.fromhex((_FOLDER / "element_v5.hex").read_text())
GOLDEN_WITHOUT_RUNS = bytes.fromhex((_FOLDER / "element_v1.hex").read_text())
WITHOUT_RUNS = attrs.evolve(ELEMENT, runs=RunList())


def _blobs(runs: RunList, *numbers: int) -> bytes:
    fields = Encoder()
    for number in numbers:
        fields.blob(runs.runs[number].encode())
    return fields.finish()


def test_an_element_has_its_golden_bytes() -> None:
    assert ELEMENT.encode() == GOLDEN
    assert Element.decode(GOLDEN) == ELEMENT


def test_an_element_without_runs_has_its_golden_bytes() -> None:
    assert WITHOUT_RUNS.encode() == GOLDEN_WITHOUT_RUNS
    assert Element.decode(GOLDEN_WITHOUT_RUNS) == WITHOUT_RUNS


def test_an_element_whose_runs_have_segments_has_its_golden_bytes() -> None:
    assert ELEMENT_WITH_SEGMENTS.encode() == GOLDEN_WITH_SEGMENTS
    assert Element.decode(GOLDEN_WITH_SEGMENTS) == ELEMENT_WITH_SEGMENTS


@pytest.mark.parametrize(
    "element",
    [
        attrs.evolve(ELEMENT, epoch=EPOCH_MAX + 1),
        attrs.evolve(ELEMENT, n=NUMBER_MAX + 1),
        attrs.evolve(ELEMENT, predecessor=Position(NUMBER_MAX + 1, 1)),
        attrs.evolve(ELEMENT, progress=attrs.evolve(ELEMENT.progress, highest_version=NUMBER_MAX + 1)),
        attrs.evolve(ELEMENT, pins=(Pin("daily", NUMBER_MAX + 1),)),
    ],
    ids=["epoch", "number", "predecessor", "counter", "pin"],
)
def test_an_element_with_a_number_that_cannot_be_counted_on_is_refused(element: Element) -> None:
    with pytest.raises(DecodeError, match="no element has numbers like these"):
        Element.decode(element.encode())


@pytest.mark.parametrize("name", ["", "../store", "a/b", ".hidden", "x" * 101, "a\0b"])
def test_a_pin_whose_name_no_backup_can_have_is_refused(name: str) -> None:
    with pytest.raises(DecodeError, match="no backup has the name"):
        Element.decode(attrs.evolve(ELEMENT, pins=(Pin(name, 1),)).encode())


@pytest.mark.parametrize(
    "changes",
    [{"name": "x" * 513}, {"length": 1 << 63}, {"tail_length": 4096}],
    ids=["name", "length", "tail"],
)
def test_an_element_that_names_a_run_which_no_storage_can_have_is_refused(changes: dict[str, Any]) -> None:
    first, *others = ELEMENT.runs
    hostile = attrs.evolve(ELEMENT.runs, runs=(replace(first, **changes), *others))
    with pytest.raises(DecodeError, match="no run has an entry like that"):
        Element.decode(attrs.evolve(ELEMENT, runs=hostile).encode())


def test_m13_earlier_code_which_publishes_no_segments_refuses_an_element_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes no tombstones for names: deleted segments came back."""
    monkeypatch.setattr(element_module, "_NEWEST", 2)
    with pytest.raises(DecodeError, match="element of version 3"):
        Element.decode(GOLDEN_WITH_SEGMENTS)


def test_m21_earlier_code_which_knows_no_rows_of_ended_transactions_refuses_an_element_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would begin them again."""
    assert ELEMENT_WITH_TRANSACTIONS.encode() == GOLDEN_WITH_TRANSACTIONS
    assert Element.decode(GOLDEN_WITH_TRANSACTIONS) == ELEMENT_WITH_TRANSACTIONS
    monkeypatch.setattr(element_module, "_NEWEST", 3)
    with pytest.raises(DecodeError, match="element of version 4"):
        Element.decode(GOLDEN_WITH_TRANSACTIONS)


def _holding(*segments: int) -> Element:
    return attrs.evolve(CONSISTENT_ELEMENT, runs=attrs.evolve(CONSISTENT_ELEMENT.runs, held=segments))


def test_a_consistent_element_has_its_golden_bytes() -> None:
    assert CONSISTENT_ELEMENT.encode() == GOLDEN_CONSISTENT
    assert Element.decode(GOLDEN_CONSISTENT) == CONSISTENT_ELEMENT


def test_a_consistent_element_needs_no_runs() -> None:
    element = attrs.evolve(CONSISTENT_ELEMENT, runs=RunList(schema=CONSISTENT, records_to=7))
    assert Element.decode(element.encode()) == element


def test_f10_earlier_code_which_holds_no_rows_back_refuses_an_element_that_may_name_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would take them for published ones."""
    monkeypatch.setattr(element_module, "_NEWEST", 4)
    with pytest.raises(DecodeError, match="element of version 5"):
        Element.decode(GOLDEN_CONSISTENT)


@given(element=consistent_elements)
def test_what_was_encoded_of_a_consistent_element_is_decoded(element: Element) -> None:
    assert Element.decode(element.encode()) == element


def test_every_changed_byte_of_a_consistent_element_is_noticed() -> None:
    for position in range(len(GOLDEN_CONSISTENT)):
        damaged = bytearray(GOLDEN_CONSISTENT)
        damaged[position] ^= 1
        with pytest.raises(DecodeError):
            Element.decode(bytes(damaged))


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (
            attrs.evolve(
                CONSISTENT_ELEMENT, runs=attrs.evolve(CONSISTENT_ELEMENT.runs, records_to=NUMBER_MAX + 1)
            ),
            "numbers like these",
        ),
        (_holding(SID, SID), "not in order"),
        (
            attrs.evolve(
                CONSISTENT_ELEMENT, runs=attrs.evolve(CONSISTENT_ELEMENT.runs, rows_to=9, records_to=1199)
            ),
            "rows above version 1199",
        ),
    ],
    ids=["records", "held twice", "rows above"],
)
def test_a_consistent_element_that_no_owner_makes_is_refused(element: Element, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        Element.decode(element.encode())


def test_a_consistent_element_with_rows_of_later_versions_than_records_is_refused() -> None:
    content = CONSISTENT_ELEMENT.encode()
    versions = (1200).to_bytes(8, "big") + (1204).to_bytes(8, "big")
    assert content.count(versions) == 1
    body = content[:-4].replace(versions, (1205).to_bytes(8, "big") + versions[8:])
    with pytest.raises(DecodeError, match="rows up to 1205, records up to 1204"):
        Element.decode(body + crc32c(body).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "element", [ELEMENT, ELEMENT_WITH_TRANSACTIONS, CONSISTENT_ELEMENT], ids=["2", "4", "5"]
)
def test_runs_are_found_in_the_content_of_each_version(element: Element) -> None:
    first = element.runs.runs[0].encode()
    content = element.encode()
    assert content[runs_at(content) :].startswith(len(first).to_bytes(4, "big") + first)


@pytest.mark.parametrize(
    "runs",
    [ELEMENT.runs, RunList((), 8)],
    ids=["runs", "merged away"],
)
def test_m8_earlier_code_which_reads_no_runs_refuses_an_element_with_runs(
    runs: RunList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints would lack the tombstones of rows that runs have: deleted records came back."""
    with_runs, without = attrs.evolve(ELEMENT, runs=runs).encode(), WITHOUT_RUNS.encode()
    monkeypatch.setattr(element_module, "_NEWEST", 1)  # earlier code knows version 1 only
    assert Element.decode(without) == WITHOUT_RUNS
    with pytest.raises(DecodeError, match="element of version 2"):
        Element.decode(with_runs)


@pytest.mark.parametrize(("content", "version"), [(GOLDEN, 1), (GOLDEN_WITHOUT_RUNS, 2)])
def test_an_element_of_the_other_version_behind_a_right_checksum_is_refused(
    content: bytes, version: int
) -> None:
    body = bytearray(content[:-4])
    body[4] = version
    with pytest.raises(DecodeError, match=f"of version {version} has another run list"):
        Element.decode(bytes(body) + crc32c(body).to_bytes(4, "big"))


def test_m7_a_run_list_without_runs_keeps_the_version_that_changes_begin_from() -> None:
    element = attrs.evolve(ELEMENT, runs=RunList((), 8))
    assert Element.decode(element.encode()) == element


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (b"\0\0\0\0\1", "no form"),
        (b"\1\0\0\0\0", "no form"),
        (b"\3\0\0\0\0", "no form"),
        (b"\2" + RunList().encode(), "another run list"),
        (b"\2" + bytes(8) + b"\0\0\0\2" + _blobs(ELEMENT.runs, 1, 0), "not in order"),
        (b"\2" + bytes(8) + b"\0\0\0\2" + _blobs(ELEMENT.runs, 0, 0), "overlap"),
    ],
    ids=["runs without a list", "unused", "unknown", "empty", "disordered", "overlapping"],
)
def test_another_run_list_behind_a_right_checksum_is_refused(form: bytes, reason: str) -> None:
    pins = len(attrs.evolve(WITHOUT_RUNS, pins=()).encode()) - 8
    body = GOLDEN[: pins - 5] + form + GOLDEN_WITHOUT_RUNS[pins:-4]
    with pytest.raises(DecodeError, match=reason):
        Element.decode(body + crc32c(body).to_bytes(4, "big"))


def test_its_position_is_its_number_and_its_last_four_bytes() -> None:
    assert position_of(GOLDEN) == Position(ELEMENT.n, crc32c(GOLDEN[:-4]))


@given(elements)
def test_what_was_encoded_is_decoded(element: Element) -> None:
    assert Element.decode(element.encode()) == element


def test_every_changed_byte_is_noticed() -> None:
    for position in range(len(GOLDEN)):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(GOLDEN)
            damaged[position] ^= mask
            with pytest.raises(DecodeError):
                Element.decode(bytes(damaged))


def test_every_shortened_element_is_noticed() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(DecodeError):
            Element.decode(GOLDEN[:size])


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, 0, "not an element"),
        (4, 6, "element of version 6"),
        (4, 0, "of a version"),
        (5, 9, "Kind at 5 is 9"),
        (-1, 7, "left over|wanted"),
    ],
)
def test_an_unknown_element_behind_a_right_checksum_is_refused(
    position: int, value: int, reason: str
) -> None:
    body = bytearray(GOLDEN[:-4])
    if position < 0:
        body.append(value)
    else:
        body[position] = value
    with pytest.raises(DecodeError, match=reason):
        Element.decode(bytes(body) + crc32c(body).to_bytes(4, "big"))
