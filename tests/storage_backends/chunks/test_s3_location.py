"""Locations in S3, as users write them."""

from __future__ import annotations

import pytest

from tierlog import InvalidArgument
from tierlog.storage_backends.chunks.s3_location import S3Location, parse_location


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("s3://bucket", ""),
        ("s3://bucket/", ""),
        ("s3://bucket/store", "store/"),
        ("s3://bucket/a/b.c/", "a/b.c/"),
        ("s3://bucket/.hidden/...", ".hidden/.../"),
    ],
)
def test_a_prefix_ends_with_a_slash(text: str, prefix: str) -> None:
    assert parse_location(text) == S3Location("bucket", prefix)


@pytest.mark.parametrize("prefix", ["a/../b", "..", "../a", "a/.", "./a", "a//b", "/a", "a//", "/"])
def test_a_prefix_that_could_be_taken_for_another_one_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="without empty parts, '.' and '..'"):
        parse_location(f"s3://bucket/{prefix}")
