"""Where a store is, as users write it: a data folder of one machine, or a place that all machines reach."""

from __future__ import annotations

from typing import TypeAlias

from ...storage_backends.chunks.s3_location import SCHEME as BUCKET
from ...storage_backends.chunks.s3_location import S3Location, parse_location
from .paths import StoreFolder, check_path

SharedLocation: TypeAlias = S3Location
"""Of a store that is as a whole where all machines reach it."""


def shared_location(path: object) -> SharedLocation | None:
    """The location that ``path`` names; None if it is a data folder. Raises ``InvalidArgument`` if it is
    malformed."""
    return parse_location(path) if isinstance(path, str) and path.startswith(BUCKET) else None


def store_place(path: object) -> StoreFolder | SharedLocation:
    """What ``path`` names, which need not exist. Raises ``InvalidArgument``."""
    return shared_location(path) or check_path(path)
