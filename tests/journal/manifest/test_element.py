"""Elements of the chain (rules J1, J2): permanent bytes, round trips, and damage that is always noticed."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given

from support.operations import ELEMENT, elements
from tierlog.journal.manifest.element import Element, Position, StoredRunList, position_of
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError, Encoder
from tierlog.storage_backends.sorted_runs.run_list import RunList

_FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = bytes.fromhex((_FOLDER / "element_v1.hex").read_text())
GOLDEN_WITHOUT_RUNS = bytes.fromhex((_FOLDER / "element_without_runs_v1.hex").read_text())


def _blobs(runs: RunList | StoredRunList, *numbers: int) -> bytes:
    assert isinstance(runs, RunList)
    fields = Encoder()
    for number in numbers:
        fields.blob(runs.runs[number].encode())
    return fields.finish()


def test_an_element_has_its_golden_bytes() -> None:
    assert ELEMENT.encode() == GOLDEN
    assert Element.decode(GOLDEN) == ELEMENT


def test_an_element_without_runs_has_its_golden_bytes() -> None:
    element = attrs.evolve(ELEMENT, runs=RunList())
    assert element.encode() == GOLDEN_WITHOUT_RUNS
    assert Element.decode(GOLDEN_WITHOUT_RUNS) == element


def test_m7_a_run_list_without_runs_keeps_the_version_that_changes_begin_from() -> None:
    element = attrs.evolve(ELEMENT, runs=RunList((), 8))
    assert Element.decode(element.encode()) == element


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (b"\0\0\0\0\1", "no form"),
        (b"\3\0\0\0\0", "no form"),
        (b"\2" + RunList().encode(), "another form"),
        (b"\2" + bytes(8) + b"\0\0\0\2" + _blobs(ELEMENT.runs, 1, 0), "not in order"),
        (b"\2" + bytes(8) + b"\0\0\0\2" + _blobs(ELEMENT.runs, 0, 0), "overlap"),
    ],
    ids=["runs without a list", "unknown", "empty", "disordered", "overlapping"],
)
def test_another_run_list_behind_a_right_checksum_is_refused(form: bytes, reason: str) -> None:
    without = attrs.evolve(ELEMENT, runs=RunList()).encode()[:-4]
    pins = len(attrs.evolve(ELEMENT, runs=RunList(), pins=()).encode()) - 8
    body = without[: pins - 5] + form + without[pins:]
    with pytest.raises(DecodeError, match=reason):
        Element.decode(body + crc32c(body).to_bytes(4, "big"))


def test_its_position_is_its_number_and_its_last_four_bytes() -> None:
    assert position_of(GOLDEN) == Position(ELEMENT.n, crc32c(GOLDEN[:-4]))


def test_a_run_list_may_be_an_object_of_its_own() -> None:
    element = attrs.evolve(ELEMENT, runs=StoredRunList("tables/0/list", 1 << 20, 0xFEED))
    assert Element.decode(element.encode()) == element


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
    [(0, 0, "not an element"), (4, 2, "of a version"), (5, 9, "9 is no kind"), (-1, 7, "left over|wanted")],
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
