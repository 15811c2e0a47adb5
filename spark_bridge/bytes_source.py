"""Where a reader's bytes come from: the seam between what reads events and what reads segments.

Owns: the contract, and its form over the service. Does not own: events.

Another form can read chunks in long-term storage directly; whoever reads events does not notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from ..actors.gateway.client.sync_client import SyncClient


class BytesSource(Protocol):
    def read(self, segment: str, offset: int, size: int) -> bytes:
        """The bytes that are asked for, which are known to exist. ``SegmentTruncated`` or ``SegmentNotFound``
        if they do no more."""
        ...

    def append_starts(self, segment: str, start: int, end: int) -> Sequence[int]:
        """Some of the offsets in ``start .. end`` at which appends begin, ascending; perhaps none."""
        ...


@attrs.frozen
class ServiceBytes:
    client: SyncClient

    def append_starts(self, segment: str, start: int, end: int) -> Sequence[int]:
        return self.client.append_starts(segment, start, end)

    def read(self, segment: str, offset: int, size: int) -> bytes:
        pieces = [self.client.read(segment, offset, size)]
        got = len(pieces[0])
        while got < size:
            piece = self.client.read(segment, offset + got, size - got)
            if not piece:
                break

            pieces.append(piece)
            got += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
