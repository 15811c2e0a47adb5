"""The live segments of a container, for checks that must not load one."""

from __future__ import annotations

from support.table_rows import records_of
from tierlog.actors.container.container import Container
from tierlog.actors.container.segment_rows import load_of_row
from tierlog.journal.operations.segment_image import SegmentImage, decode_image
from tierlog.storage_backends.sorted_runs.rows import Row


def live_ids(container: Container) -> dict[str, int]:
    """The ids by name, those of cold segments too."""
    return {
        key[2:]: int.from_bytes(value, "big")
        for key, (_, value) in records_of(container).items()
        if key.startswith("n:")
    }


def cold_images(container: Container) -> dict[int, SegmentImage]:
    """Of the segments that are not in memory, by id."""
    rows = (Row(key.encode(), *entry) for key, entry in records_of(container).items() if key.startswith("g:"))
    images = (decode_image(load.image) for row in rows if (load := load_of_row(row)) is not None)
    return {image.sid: image for image in images if image.sid not in container.state.segments}
