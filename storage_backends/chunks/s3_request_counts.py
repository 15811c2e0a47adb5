"""Counts of the requests to an S3 service, by the kinds that are charged: what a bucket costs besides its
space."""

from __future__ import annotations

import attrs

from ..base.statistics import counter
from ..base.values import Value

_KINDS = {
    "put_object": "puts",
    "copy_object": "puts",
    "create_multipart_upload": "puts",
    "upload_part": "puts",
    "upload_part_copy": "puts",
    "complete_multipart_upload": "puts",
    "get_object": "gets",
    "head_object": "gets",
    "list_objects_v2": "lists",
    "list_multipart_uploads": "lists",
    "delete_object": "deletes",
    "abort_multipart_upload": "deletes",
}


@attrs.frozen(eq=False, repr=False)
class S3RequestStatistics(Value):
    puts: int = attrs.field(
        default=0, metadata=counter("Puts, copies, and requests of uploads in parts, to the S3 service.")
    )
    gets: int = attrs.field(default=0, metadata=counter("Gets and heads to the S3 service."))
    lists: int = attrs.field(
        default=0, metadata=counter("Listings by the S3 service, each page counted; they cost as puts do.")
    )
    deletes: int = attrs.field(
        default=0, metadata=counter("Deletions and aborted uploads; most services charge nothing for them.")
    )


class S3RequestCounts:
    """What the clients that share it have sent."""

    def __init__(self) -> None:
        self._sent = dict.fromkeys(_KINDS.values(), 0)

    def count(self, operation: str) -> None:
        """``operation`` is named as in the client."""
        self._sent[_KINDS[operation]] += 1

    def statistics(self) -> S3RequestStatistics:
        return S3RequestStatistics(**self._sent)
