"""What must be left of the legacy layout's files once everything is flushed and collected.

* What was not imported is there, byte for byte.
* What was imported is a chunk like any other: there while a segment needs it, and gone after that (rules S19
  and G3). Its header stays, and so does the mark of the segment that has its files (rule S14).
* Where headers are kept up to date, a reader of the legacy layout finds in them what the store shows, as far
  as their format can express it (rule S15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from support.live_segments import live_ids
from support.table_rows import records_of
from tierlog.actors.container.container import Container
from tierlog.actors.legacy_rolling.file_claims import FileClaim, file_claim_name
from tierlog.actors.legacy_rolling.header import HEADER_SUFFIX, header_name, parse_header
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.transactions import is_staged
from tierlog.storage_backends.segments.records.imported import imported_key

from .legacy import LegacyFiles
from .records import chain, segment_records
from .view import SegmentView, View

Contents = Mapping[str, bytes]


@attrs.frozen
class LegacyFilesLeft:
    segments: Sequence[LegacyFiles] = ()
    layout: LayoutMode = LayoutMode.INSTALL_NEW

    def needed(self, containers: Sequence[Container]) -> dict[str, bytes]:
        """The files that must be there, and what they hold."""
        found: dict[str, bytes] = {}
        for segment in self.segments:
            is_imported = _is_imported(containers, segment)
            # An empty file is no chunk.
            found |= {file: data for file, data in segment.data_files.items() if not is_imported or not data}
            if segment.header and not (is_imported and self.layout.writes_headers):
                found[segment.header] = segment.header_bytes
            if is_imported:
                found |= {
                    file_claim_name(taker): FileClaim(taker, segment.name).encode()
                    for taker in segment.takers
                }
        return found

    def may_be_left(self, name: str) -> bool:
        """Whether nothing is wrong with a file that no record names: the mark of an import that came to
        nothing, a header."""
        if self.layout.writes_headers and name.endswith(HEADER_SUFFIX):
            return True

        return name in {file_claim_name(taker) for segment in self.segments for taker in segment.takers}

    def breaches(self, containers: Sequence[Container], contents: Contents, shown: View) -> Iterator[str]:
        """A sentence for each thing that is wrong."""
        for file, data in self.needed(containers).items():
            if contents.get(file) != data:
                yield f"{file} {'holds other bytes than it did' if file in contents else 'is gone'}"
        for container in containers if self.layout.writes_headers else ():
            yield from _header_breaches(container, contents, shown)


def _is_imported(containers: Sequence[Container], segment: LegacyFiles) -> bool:
    return any(imported_key(segment.name) in records_of(container) for container in containers)


def _header_breaches(container: Container, contents: Contents, shown: View) -> Iterator[str]:
    names = {sid: name for name, sid in live_ids(container).items() if name in shown and not is_staged(name)}
    for record in segment_records(records_of(container)):
        name = names.get(record.segment)
        chunks = [chunk for _, chunk in chain(records_of(container), record)]
        if name is None or not chunks or len(contents[chunks[-1].name]) != chunks[-1].length:
            continue  # what the format cannot express

        read = _read_as_legacy(contents, header_name(name), shown[name])
        if read != shown[name].data:
            found = "has no header that can be read" if read is None else f"is {len(read)} other bytes"
            yield f"to a reader of the legacy layout, {name} {found}; it is {shown[name]}"


def _read_as_legacy(contents: Contents, file: str, segment: SegmentView) -> bytes | None:
    """The bytes from the segment's start on, as the header describes them; None without a valid header."""
    header = parse_header(contents[file], file) if file in contents else None
    if header is None or not header.chunks or any(chunk.name not in contents for chunk in header.chunks):
        return None

    ends = [*(chunk.start for chunk in header.chunks[1:]), None]
    parts = [
        contents[chunk.name][: None if end is None else end - chunk.start]
        for chunk, end in zip(header.chunks, ends, strict=True)
    ]
    return b"".join(parts)[segment.start - header.chunks[0].start :]
