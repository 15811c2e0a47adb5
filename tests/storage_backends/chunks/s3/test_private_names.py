"""The private names of libraries that the S3 storage uses, because nothing public turns off the retry on a
kept connection. ``pyproject.toml`` bounds the versions of both libraries."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import aiohttp
import anyio
from aiobotocore.httpsession import AIOHTTPSession

from tierlog.storage_backends.chunks import s3_requests


def test_aiobotocore_makes_its_session_in_the_method_that_is_overridden() -> None:
    assert list(inspect.signature(AIOHTTPSession._get_session).parameters) == ["self", "proxy_url"]


def test_aiohttp_reads_the_attribute_that_is_set() -> None:
    async def read() -> None:
        async with aiohttp.ClientSession() as session:
            assert session._retry_connection is True

    anyio.run(read)


def test_no_other_private_name_is_used() -> None:
    package = Path(s3_requests.__file__).parent
    private = re.compile(r"(?<!self)(?<!storage)\._[a-z]\w*")
    found = [name for file in package.glob("s3*.py") for name in private.findall(file.read_text())]
    assert sorted(found) == ["._get_session", "._retry_connection"]
