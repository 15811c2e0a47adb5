"""The log in a bucket keeps the log's contract on an S3 service too, whose requests fail now and then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest

from support.s3 import numbered_world
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.errors import NotOwner
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options
from tierlog.testing.log_conformance import DurableDataLogConformance as Every

pytestmark = pytest.mark.usefixtures("reused_clients")

LOG_ID = b"0123456789abcdef"
FAULTS = [
    Fault("PutObject", drop=True, applied=True, times=2),
    Fault("PutObject", refuse=(409, "ConditionalRequestConflict"), times=2),
    Fault("PutObject", refuse=(500, "InternalError"), applied=True, times=2),
    Fault("PutObject", refuse=(503, "SlowDown"), times=2),
    Fault("GetObject", refuse=(503, "SlowDown")),
    Fault("ListObjectsV2", key="wal/", drop=True),
]


class OnS3(Every):
    options = S3LogOptions(pace=0.0, first_delay=0.0001, longest_delay=0.001)
    faults: list[Fault] = []  # noqa: RUF012  # replaced, never changed

    @pytest.fixture(autouse=True)
    async def _served(self, server: S3Server, anyio_backend: str) -> AsyncIterator[None]:
        server.page_size = 3
        async with AsyncExitStack() as stack:
            self.stack, self.server, self.objects = stack, server, None
            server.fail(*map(attrs.evolve, self.faults))
            yield

    async def make_log(self) -> DurableDataLog:
        if self.objects is None:
            self.objects = S3Objects(S3Location(BUCKET, "store/"), S3Options(endpoint=self.server.url))
            await self.objects.open()
            self.stack.push_async_callback(self.objects.close)
        return S3Log(self.objects, "wal/0000/", LOG_ID, numbered_world(), self.options)

    objects: Any


class TestS3Log(OnS3):
    pass


class TestS3LogWhoseRequestsFail(OnS3):
    options = attrs.evolve(OnS3.options, appends_max=4)
    faults = FAULTS

    async def test_every_fault_was_met(self) -> None:
        old, _ = await self.opened()
        for _ in range(10):
            await old.append([b"x"])
        new, opened = await self.opened()
        assert len(opened.groups) == 10
        with pytest.raises(NotOwner):
            await old.append([b"zombie"])
        await new.append([b"y"])

        statuses = [seen.status for seen in self.server.seen]
        assert {0, 409, 500, 503} <= set(statuses)
