"""Coordination in a bucket keeps its contract on an S3 service too, whose requests fail now and then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest

from support.s3 import numbered_world
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.journal.coordination.contract import Coordination
from tierlog.journal.coordination.objects import ObjectCoordination, ObjectCoordinationOptions
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options
from tierlog.testing.coordination_conformance import CoordinationConformance as Every

pytestmark = pytest.mark.usefixtures("reused_clients")

OPTIONS = ObjectCoordinationOptions(first_delay=0.0001, longest_delay=0.001)
WORLD = numbered_world()


class TestCoordinationOnS3(Every):
    faults: list[Fault] = []  # noqa: RUF012  # replaced, never changed

    @pytest.fixture(autouse=True)
    async def _served(self, server: S3Server, anyio_backend: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            self.stack, self.server, self.objects = stack, server, None
            server.fail(*map(attrs.evolve, self.faults))
            yield

    async def make_coordination(self) -> Coordination:
        if self.objects is None:
            self.objects = S3Objects(S3Location(BUCKET, "store/"), S3Options(endpoint=self.server.url))
            await self.objects.open()
            self.stack.push_async_callback(self.objects.close)
        return ObjectCoordination(self.objects, "", WORLD, OPTIONS)

    objects: Any


class TestCoordinationOnS3WhoseRequestsFail(TestCoordinationOnS3):
    faults = [  # noqa: RUF012  # replaced, never changed
        Fault("PutObject", drop=True, applied=True, times=2),
        Fault("PutObject", refuse=(409, "ConditionalRequestConflict"), times=2),
        Fault("PutObject", refuse=(500, "InternalError"), applied=True),
        Fault("GetObject", refuse=(503, "SlowDown")),
    ]
