"""Stores in a bucket of a real service: what was acked survives another opening, another machine, and the
service's end; and what is wrong at an opening is said."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from s3_gateway import BUCKET, S3Gateway

from support.stores import config
from support.stores_of_all_kinds import fill
from tierlog import ConfigError, NotOwner, OutcomeUnknown, SegmentStore, StoreConfig, Unavailable, open_store
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig

pytestmark = [pytest.mark.anyio, pytest.mark.extended, pytest.mark.timeout(450)]  # the first may build it

NAME = "app/events"
PLACE = f"s3://{BUCKET}/stores/first"
PIECES = [bytes([number]) * 20_000 for number in range(30)]


@attrs.frozen
class Machine:
    disk: Path
    gateway: S3Gateway

    def settings(self) -> StoreConfig:
        return config(
            s3=S3Config(endpoint=self.gateway.url),
            chunk_cache=ChunkCacheConfig(path=str(self.disk)),
            s3_log=S3LogConfig(pace=0.0),
        )

    def open(self, place: str = PLACE, **arguments: Any) -> AbstractAsyncContextManager[SegmentStore]:
        return open_store(place, **{"config": self.settings(), "containers": 1, **arguments})


@pytest.fixture
def here(gateway: S3Gateway, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here", gateway)


@pytest.fixture
def elsewhere(gateway: S3Gateway, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "elsewhere", gateway)


async def append_all(store: SegmentStore) -> None:
    for number, piece in enumerate(PIECES):
        await store.append(NAME, piece, writer_id="w", event_number=number)


async def read_all(store: SegmentStore) -> bytes:
    data = bytearray()
    while block := await store.read(NAME, len(data), 1 << 20):
        data += block
    return bytes(data)


async def test_a_second_opening_fences_the_first_and_has_all_that_was_acked(
    here: Machine, elsewhere: Machine
) -> None:
    async with here.open() as first:
        await fill(first)
        await first.create_segment(NAME)
        await append_all(first)
        await first.flush()
        await first.append(NAME, b"in the log")
        names = await first.list_segments()
        async with elsewhere.open() as second:
            await second.append(NAME, b", second")
            with pytest.raises((NotOwner, OutcomeUnknown)):
                await first.append(NAME, b"zombie")
            assert await second.list_segments() == names
            assert await second.table("table").get(b"key") is not None
            await second.flush()
    async with here.open() as third:
        assert await read_all(third) == b"".join(PIECES) + b"in the log, second"
        assert await third.list_segments() == names


async def test_a_store_goes_on_when_the_service_was_killed_and_comes_back(here: Machine) -> None:
    """What waited meanwhile is there once: it is sent with its number until it is acked."""
    async with here.open() as store:
        await store.create_segment(NAME)
        async with anyio.create_task_group() as tasks:

            async def append() -> None:
                for number, piece in enumerate(PIECES):
                    await until_acked(store, number, piece)

            tasks.start_soon(append)
            await until_length(store, 5 * len(PIECES[0]))
            here.gateway.kill()
            here.gateway.start()
        await store.flush()
        assert await read_all(store) == b"".join(PIECES)
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES)


async def until_acked(store: SegmentStore, number: int, piece: bytes) -> None:
    while True:
        try:
            await store.append(NAME, piece, writer_id="w", event_number=number)
        except (Unavailable, OutcomeUnknown):
            await anyio.sleep(0.01)
        else:
            return


async def until_length(store: SegmentStore, length: int) -> None:
    while (await store.segment_info(NAME)).length < length:
        await anyio.sleep(0.001)


# --- refused ------------------------------------------------------------------------------------------


async def refused(opening: AbstractAsyncContextManager[SegmentStore]) -> None:
    async with opening:
        raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("AWS_ACCESS_KEY_ID", "does not know the access key"),
        ("AWS_SECRET_ACCESS_KEY", "the secret key does not belong to the access key"),
    ],
)
async def test_wrong_credentials_are_refused(
    here: Machine, variable: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # no client that has the right ones
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(ConfigError, match=reason):
        await refused(here.open())


async def test_a_missing_bucket_is_named(here: Machine) -> None:
    with pytest.raises(ConfigError, match="there is no bucket no-such-bucket"):
        await refused(here.open("s3://no-such-bucket/store"))


async def test_a_service_that_is_down_is_named(here: Machine) -> None:
    here.gateway.kill()
    try:
        with pytest.raises(Unavailable, match=f"{here.gateway.url}/? cannot be reached"):
            await refused(here.open())
    finally:
        here.gateway.start()
