"""What happens to a log in a bucket (rules L1 to L7): trouble with its requests, and damage of its objects
while no process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tierlog.journal.log.s3_layout import S3LogLayout
from tierlog.journal.log.s3_slot import SlotKind

from .bucket import LOGS, REGISTER, SLOT
from .bucket_invariants import slot_headers
from .damage import Undo, flipped
from .faults import Target
from .plan import FaultKind
from .remote_log_faults import RemoteLogFaults


class BucketFaults(RemoteLogFaults):
    kind, target = FaultKind.BUCKET, Target.OBJECTS
    calls = (
        ("put", SLOT),
        ("put", SLOT),
        ("put", REGISTER),
        ("get", SLOT),
        ("get", REGISTER),
        ("list", SLOT),
        ("delete", SLOT),
    )
    late = (("put", SLOT), ("put", SLOT), ("put", REGISTER))
    append = ("put", SLOT)
    creating = ("put",)

    def damage(self, random: Random) -> Undo | None:
        """An object of a log or the identity has a flipped bit, or is cut, or a group is gone that is not the
        newest."""
        objects = self._site.bucket.objects
        keys = [key for key in objects if key.startswith(LOGS) or key == "store"]
        gone = [key for key in keys if SLOT in key and _was_settled(key, objects)]
        if gone and random.random() < 0.4:
            return self._exchange(random.choice(gone), None, "is gone")
        if not keys:
            return None

        key = random.choice(keys)
        data = objects[key]
        if random.random() < 0.5:
            bit = random.randrange(8 * len(data))
            return self._exchange(key, flipped(data, bit), f"bit {bit} flipped")
        size = random.randrange(len(data))
        return self._exchange(key, data[:size], f"cut to {size} bytes")

    def _exchange(self, key: str, data: bytes | None, what: str) -> Undo:
        self._site.trace.note("damage", f"{key} {what}")
        return self._site.bucket.exchange(key, data)


def _was_settled(key: str, objects: Mapping[str, bytes]) -> bool:
    """Whether it is a group, and a later object of its log says that it was settled (rule L5)."""
    layout = S3LogLayout(key.partition(SLOT)[0] + "/")
    slot = layout.slot_in(key)
    headers = slot_headers(layout, objects)
    return (
        slot is not None
        and headers[slot].kind is SlotKind.GROUP
        and any(each.settled > slot for each in headers.values())
    )
