"""CRC32C: the published check values, and running values over pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.checksum import crc32c, crc32c_of, load_crc32c


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_the_check_values_of_rfc_3720(data: bytes, value: int) -> None:
    assert crc32c(data) == value


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, (1 << 32) - 1))
def test_pieces_have_the_checksum_of_the_whole(pieces: list[bytes], salt: int) -> None:
    assert crc32c_of(pieces, salt) == crc32c(b"".join(pieces), salt)


@given(st.binary(max_size=40))
def test_every_kind_of_buffer_has_the_same_checksum(data: bytes) -> None:
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)


def test_a_release_without_the_expected_extension_module_serves_too() -> None:
    assert load_crc32c("crc32c._renamed")(b"123456789", 0) == 0xE3069283
