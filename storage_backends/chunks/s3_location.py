"""The location of chunks in S3: ``s3://bucket/prefix``. Needs no client, so that a configuration can be
checked without one."""

from __future__ import annotations

import re

from msgspec import Struct

from ..base.errors import InvalidArgument

SCHEME = "s3://"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX = r"(?:(?!\.{1,2}/)[a-zA-Z0-9_.$#=-]+/)*"
"""Without ``.`` and ``..``: to a bucket they are names like others, to a tool or a gateway that keeps objects
in folders another prefix."""
_PREFIX_MAX = 400
"""With the longest chunk name a key is still shorter than the 1,024 bytes that S3 allows."""


class S3Location(Struct, frozen=True):
    bucket: str
    prefix: str
    """Empty, or ending with a slash."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def parse_location(text: str) -> S3Location:
    """Parse ``s3://BUCKET`` or ``s3://BUCKET/PREFIX``. Raises ``InvalidArgument``."""
    if "@" in text:
        # Not shown: it may be a password.
        raise InvalidArgument("a location in S3 has no user name or password: write s3://BUCKET/PREFIX")

    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    # With its slash: without one ``a`` would contain the objects of ``ab``.
    prefix = f"{prefix.removesuffix('/')}/" if prefix else ""
    if (
        not text.startswith(SCHEME)
        or not re.fullmatch(_BUCKET, bucket)
        or not re.fullmatch(_PREFIX, prefix)
        or len(prefix) > _PREFIX_MAX
    ):
        raise InvalidArgument(
            f"{text[:80]!r} is not a location in S3: write s3://BUCKET or s3://BUCKET/PREFIX, with a bucket "
            f"of 3 to 63 lower-case letters, digits, dots and dashes, and a prefix of at most {_PREFIX_MAX} "
            f"letters, digits, '.', '_', '$', '#', '=', '-' and '/', without empty parts, '.' and '..'"
        )

    return S3Location(bucket, prefix)
