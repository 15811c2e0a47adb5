"""Each request of a log's life fails once, in each way: three owners, truncations, and a zombie (rules L1 to
L8)."""

from __future__ import annotations

import attrs
import pytest

from support.call_faults import KINDS_AND_DELAYS, CallFault, FaultKind
from support.faulty_objects import FaultyObjects
from support.log_life import LogLife
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.object_store import ObjectStore

pytestmark = pytest.mark.anyio

LOG_ID = b"0123456789abcdef"
PATIENT = S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0, check_after=0.0)
HASTY = attrs.evolve(PATIENT, patience=-1.0)
"""Its first request without a verdict ends the owner, as a kill would."""
REQUESTS_MAX = 60


class S3Life(LogLife):
    def __init__(self, objects: ObjectStore, options: S3LogOptions) -> None:
        super().__init__()
        self.objects = objects
        self.options = options
        self.world = numbered_world()

    def log(self) -> S3Log:
        return S3Log(self.objects, "wal/", LOG_ID, self.world, self.options)


async def requests_of_a_life() -> int:
    objects = FaultyObjects(Bucket())
    await S3Life(objects, PATIENT).live()
    return len(objects.asked)


async def test_a_life_has_as_many_requests_as_are_tried() -> None:
    assert 40 < await requests_of_a_life() <= REQUESTS_MAX


@pytest.mark.parametrize("options", [PATIENT, HASTY], ids=["repeated", "fatal"])
@pytest.mark.parametrize(("kind", "delay"), KINDS_AND_DELAYS)
async def test_no_fault_of_one_request_loses_or_repeats_a_group(
    kind: FaultKind, delay: int, options: S3LogOptions
) -> None:
    for at in range(1, REQUESTS_MAX + 1):
        objects = FaultyObjects(Bucket(), CallFault(at, kind, delay))
        life = S3Life(objects, options)
        await life.live()
        objects.settle()
        life.objects = MemoryObjects(objects.bucket)
        await life.check_all()
