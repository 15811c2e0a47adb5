"""What a bucket must hold besides chunks once the log was swept: the store's records, and of each log the
register, the groups that count from its low slot on, and fences (rule L7). Looks past all faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tierlog.actors.container.container import Container
from tierlog.journal.log.s3_history import S3History, read_history
from tierlog.journal.log.s3_layout import S3LogLayout
from tierlog.journal.log.s3_register import decode_s3_register
from tierlog.journal.log.s3_slot import FENCE_BYTES, SlotHeader, decode_slot

from .bucket import LOGS
from .invariants import Broken
from .process import Process
from .settings import WalKind
from .world import Site

_RECORDS = ("store", "trial")


def slot_headers(layout: S3LogLayout, objects: Mapping[str, bytes]) -> dict[int, SlotHeader]:
    """The headers of a log's slots, which are all sound."""
    headers: dict[int, SlotHeader] = {}
    for key, data in objects.items():
        if key.startswith(layout.slots):
            slot = int(key.removeprefix(layout.slots), 16)
            headers[slot] = decode_slot(data, data[8:24], slot, len(data), key)
    return headers


async def check_objects(site: Site, process: Process) -> None:
    """Nothing is wrong any more, and ``process`` opened after everybody else ended."""
    if site.kind.wal is not WalKind.BUCKET:
        return

    needed = set(_RECORDS)
    for container in process.containers():
        await container.log.truncate()
        needed.update(_needed(container, site.bucket.objects))
    if left := sorted(site.bucket.objects.keys() - needed):
        raise Broken(
            f"it does not hold that a log is swept\nleft over: {', '.join(left)} of "
            f"{len(site.bucket.objects)} objects"
        )


def _needed(container: Container, objects: Mapping[str, bytes]) -> Iterator[str]:
    layout = S3LogLayout(f"{LOGS}{container.index:04d}/")
    yield layout.register
    data = objects[layout.register]
    low = decode_s3_register(data, data[8:24], layout.register).low
    headers = slot_headers(layout, objects)
    history = read_history(low, {slot: header for slot, header in headers.items() if slot >= low})
    if not isinstance(history, S3History):
        raise Broken(f"it does not hold that a log can be read\n{layout.prefix}: {history}")
    for slot in headers:
        if len(objects[layout.slot(slot)]) == FENCE_BYTES:
            yield layout.slot(slot)
    yield from (layout.slot(each.slot) for each in history.groups)
