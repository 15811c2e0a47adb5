"""Chunk storages on the tests' S3 server."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any
from unittest import mock

import aiohttp
import attrs

from support.s3_server import AWS_ENVIRONMENT, BUCKET, S3Server
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks import s3_requests
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_requests import S3Client, S3Options, make_client

_NUMBERS = itertools.count(1)


def numbered_world() -> World:
    """Ids that are never used twice in this process, no clock, no chance."""
    return World(lambda: 0.0, Random(0), lambda: f"{next(_NUMBERS):032x}")


class _PlainSession(s3_requests._Session):
    """Connections without TLS, which no server here speaks: to read this machine's certificates costs more
    than most tests."""

    async def _create_connector(self, proxy_url: str | None) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector()


@contextmanager
def s3_clients(variables: Mapping[str, str]) -> Iterator[None]:
    """AWS clients find these variables and nothing of this machine's own, and speak no TLS."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    environment = mock.patch.dict(os.environ, {**own, **nowhere, **variables}, clear=True)
    with environment, mock.patch.object(s3_requests, "_Session", _PlainSession):
        yield


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """The server, and an environment in which an AWS client finds its credentials."""
    with s3_clients(AWS_ENVIRONMENT), S3Server() as server:
        yield server


def s3_storage(url: str, prefix: str = "store/", **options: Any) -> S3ChunkStorage:
    """A chunk storage on a server of this module, not open yet."""
    return S3ChunkStorage(
        S3Location(BUCKET, prefix), attrs.evolve(S3Options(endpoint=url), **options), numbered_world()
    )


class ClientPool:
    """Closed clients to open again: making one costs more than most tests."""

    def __init__(self) -> None:
        self._closed: dict[S3Options, list[Any]] = {}

    @asynccontextmanager
    async def client(self, options: S3Options) -> AsyncIterator[S3Client]:
        closed = self._closed.setdefault(options, [])
        async with closed.pop() if closed else make_client(options) as client:
            yield client
        closed.append(client)
