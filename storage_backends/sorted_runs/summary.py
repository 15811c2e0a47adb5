"""What is known of a run without reading it: counts, key range, version range. It is part of the trailer and
of the run's entry in the manifest.

Layout: u32 rows, u32 tombstones among them, u64 least version, u64 greatest version, blob first key, blob
last key.
"""

from __future__ import annotations

from msgspec import Struct

from ..base.codec import DecodeError, Decoder, Encoder


class RunSummary(Struct, frozen=True):
    rows: int
    """At least 1, with one row per key."""
    tombstones: int
    min_version: int
    max_version: int
    first_key: bytes
    last_key: bytes


def encode_summary(fields: Encoder, summary: RunSummary) -> Encoder:
    fields.u32(summary.rows).u32(summary.tombstones)
    fields.u64(summary.min_version).u64(summary.max_version)
    return fields.blob(summary.first_key).blob(summary.last_key)


def decode_summary(fields: Decoder) -> RunSummary:
    summary = RunSummary(fields.u32(), fields.u32(), fields.u64(), fields.u64(), fields.blob(), fields.blob())
    if (
        not 0 <= summary.tombstones <= summary.rows
        or not summary.rows
        or summary.min_version > summary.max_version
        or not b"" < summary.first_key <= summary.last_key
    ):
        raise DecodeError("the summary of a run contradicts itself")
    return summary
