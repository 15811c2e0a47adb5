"""The record by which hosts find their supervisor: its bytes are permanent, and nothing else is taken for
one."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.supervisor.control.record import ControlRecord, decode_control, encode_control
from tierlog.journal.coordination.contract import RECORD_BYTES_MAX
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
RECORD = ControlRecord(
    7, b"secret--" * 4, "10.0.0.1", 8471, "node-a", ("a", "rack-2.b"), b"store-id" * 2, b"put-id--" * 2
)


def with_crc(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


def test_the_golden_bytes() -> None:
    golden = (GOLDEN / "control_v2.hex").read_text().strip()
    assert encode_control(RECORD).hex() == golden
    assert decode_control(bytes.fromhex(golden), "x") == RECORD


def test_a_record_of_version_1_is_one_of_any_store() -> None:
    """A supervisor of the release before may have put it."""
    found = decode_control(bytes.fromhex((GOLDEN / "control_v1.hex").read_text()), "x")
    assert found == attrs.evolve(RECORD, store_id=bytes(16), put_id=bytes(16))
    assert found.is_of(RECORD.store_id.hex())
    assert not RECORD.is_of("00" * 16)


@given(
    st.builds(
        ControlRecord,
        st.integers(0, (1 << 64) - 1),
        st.binary(min_size=32, max_size=32),
        st.text(st.characters(codec="utf-8"), max_size=60),
        st.integers(0, 65_535),
        st.text(st.characters(codec="utf-8"), max_size=60),
        st.lists(st.from_regex(r"[a-z][a-z0-9]{0,31}", fullmatch=True), max_size=100).map(tuple),
        st.binary(min_size=16, max_size=16),
        st.binary(min_size=16, max_size=16),
    )
)
def test_a_record_decodes_to_itself(record: ControlRecord) -> None:
    assert decode_control(encode_control(record), "x") == record


def test_no_set_of_hosts_is_too_large_for_a_record() -> None:
    hosts = tuple(f"host-of-a-long-name-number-{number:05}" for number in range(1000))
    data = encode_control(attrs.evolve(RECORD, hosts=hosts))
    assert RECORD_BYTES_MAX - 40 < len(data) <= RECORD_BYTES_MAX
    kept = decode_control(data, "x").hosts
    assert kept == hosts[: len(kept)]
    assert len(kept) > 200


def test_the_secret_is_not_shown() -> None:
    assert "secret--" not in repr(RECORD)


@given(st.integers(0, len(encode_control(RECORD)) * 8 - 1))
def test_every_flipped_bit_is_found(bit: int) -> None:
    data = bytearray(encode_control(RECORD))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(DataCorruption, match="damaged: the active supervisor puts another"):
        decode_control(bytes(data), "s3://b/control")


@given(st.integers(0, len(encode_control(RECORD)) - 1))
def test_every_cut_is_found(size: int) -> None:
    with pytest.raises(DataCorruption):
        decode_control(encode_control(RECORD)[:size], "x")
    with pytest.raises((DataCorruption, StoreMismatch)):
        decode_control(with_crc(encode_control(RECORD)[:size]), "x")


@given(st.binary(max_size=200))
def test_bytes_with_a_checksum_that_are_no_record_are_refused(data: bytes) -> None:
    body = encode_control(RECORD)[:6] + data
    with pytest.raises(DataCorruption, match="no control record"):
        decode_control(with_crc(body[: len(body)] + b"\xff"), "x")


def test_a_newer_format_is_no_damage() -> None:
    body = bytearray(encode_control(RECORD)[:-4])
    body[5] = 3
    with pytest.raises(StoreMismatch, match="has format 3, this version reads up to 2: use a newer tierlog"):
        decode_control(with_crc(bytes(body)), "x")
