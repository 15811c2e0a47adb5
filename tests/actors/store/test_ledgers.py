"""A store on BookKeeper: opened from any machine, fenced by the next opening, its chunks where it was made to
have them, and the errors when something is not right. The ledgers and records are in memory."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.ledger_stores import LedgerSite, in_memory
from support.live_service import name_in
from support.patience import scaled
from support.s3_server import BUCKET, S3Server
from support.stores import make
from tierlog import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    SegmentStore,
    StoreMismatch,
    Unavailable,
    open_lts,
    open_store,
)
from tierlog.actors.folder.chunk_location import ChunkLocation, encode_location
from tierlog.actors.settings.configuration import BookKeeperConfig, S3Config
from tierlog.storage_backends.base.ledger_service import NotEnoughBookies
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = pytest.mark.anyio

NAME = "app/events"
PIECES = [bytes([number]) * 10_000 for number in range(20)]
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "chunks_of_a_shared_store.txt"


@attrs.frozen
class Machine:
    """What one machine has: a local disk."""

    disk: Path
    site: LedgerSite

    def open(self, **arguments: Any) -> AbstractAsyncContextManager[SegmentStore]:
        more = arguments.pop("settings", {})
        settings = self.site.settings(self.disk, **more)
        return open_store(self.site.place, **{"config": settings, "containers": 1, **arguments})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerSite:
    return in_memory(tmp_path, monkeypatch)


@pytest.fixture
def here(site: LedgerSite, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here", site)


@pytest.fixture
def elsewhere(site: LedgerSite, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "elsewhere", site)


async def fill(store: SegmentStore) -> None:
    await store.create_segment(NAME)
    for piece in PIECES:
        await store.append(NAME, piece)


async def read_all(store: Any) -> bytes:
    data = bytearray()
    while block := await store.read(NAME, len(data), 1 << 20):
        data += block
    return bytes(data)


async def test_what_was_acked_is_there_on_another_machine(here: Machine, elsewhere: Machine) -> None:
    async with here.open() as store:
        await fill(store)
    # Where the chunks are is known once the store is made.
    async with elsewhere.open(settings={"chunks": ""}) as store:
        assert await read_all(store) == b"".join(PIECES)
        await store.append(NAME, b"and more")
        await store.flush()
        await store.append(NAME, b"!")
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES) + b"and more!"
        assert (await store.segment_info(NAME)).flushed_length == 200_008


async def test_records_are_below_the_path_and_chunks_in_the_folder(
    here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with here.open() as store:
        await fill(store)
        await store.flush()
    assert set(here.site.cluster.records) == {
        f"/stores/first/{name}" for name in ("store", "chunks", "logs/0000")
    }
    assert {path.name for path in tmp_path.iterdir()} == {"here", "shared"}
    # Users' bytes are chunks that every tool can read.
    async with open_lts(here.site.chunks) as view:
        assert await read_all(view) == b"".join(PIECES)


@pytest.mark.parametrize("inner", ["logs/x", "logs/0000/x", "store/x", "beside"])
async def test_a_store_is_not_made_inside_another_one(here: Machine, tmp_path: Path, inner: str) -> None:
    async with here.open():
        pass
    (tmp_path / "others").mkdir()
    settings = here.site.settings(tmp_path / "disk", chunks=str(tmp_path / "others"))
    before = set(here.site.cluster.records)
    place = here.site.place
    with pytest.raises(InvalidArgument, match=f"{place}/{inner} is inside the store {place}: name that one"):
        async with open_store(f"{place}/{inner}", config=settings):
            pass
    assert set(here.site.cluster.records) == before


async def test_a_store_is_not_made_around_another_one(here: Machine, tmp_path: Path) -> None:
    other = f"{here.site.place}/logs/x"
    async with open_store(other, config=here.site.settings(here.disk), containers=1):
        pass
    (tmp_path / "others").mkdir()
    with pytest.raises(InvalidArgument, match=f"{here.site.place} is around another store, {other}: name"):
        async with here.open(settings={"chunks": str(tmp_path / "others")}):
            pass


async def test_a_second_opening_fences_the_first(here: Machine, elsewhere: Machine) -> None:
    async with here.open() as first:
        await fill(first)
        async with elsewhere.open() as second:
            await second.append(NAME, b"second")
            with pytest.raises((NotOwner, OutcomeUnknown)):
                await first.append(NAME, b"zombie")
            with pytest.raises(NotOwner):
                await first.read(NAME, 0, 10)
            assert await read_all(second) == b"".join(PIECES) + b"second"
            await second.flush()
    async with here.open() as third:
        assert await read_all(third) == b"".join(PIECES) + b"second"


async def test_of_two_that_create_the_store_at_once_one_wins(here: Machine, elsewhere: Machine) -> None:
    opened: list[str] = []

    async def create(machine: Machine) -> None:
        try:
            async with machine.open() as store:
                await store.create_segment(f"app/{machine.disk.name}")
                opened.append(machine.disk.name)
        except (NotOwner, OutcomeUnknown, Unavailable):
            return  # the other one has fenced it

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create, here)
        tasks.start_soon(create, elsewhere)
    async with here.open() as store:
        assert {f"app/{name}" for name in opened} <= set(await store.list_segments())
    assert opened


async def test_w6_the_end_of_a_sidecar_breaks_all_logs_and_every_container_recovers(
    here: Machine, site: LedgerSite
) -> None:
    names = [name_in(container, 2) for container in range(2)]
    async with here.open(containers=2) as store:
        for name in names:
            await make(store, name, b"before ")
        [service] = site.services
        service.end_sidecar()
        for name in names:
            # Its outcome is unknown, and it is sent again.
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await store.append(name, b"after", writer_id="me", event_number=1)
            await store.append(name, b"after", writer_id="me", event_number=1)
            assert await store.read(name, 0, 100) == b"before after"
        assert {each.restarts for each in store.statistics().containers} == {1}
        assert service.sidecars == 2


async def test_b11_containers_whose_sidecar_does_not_start_again_are_given_up_soon(
    here: Machine, site: LedgerSite
) -> None:
    """So that another host can have them. A service that does not answer is waited for."""
    async with here.open() as store:
        await fill(store)
        [service] = site.services
        service.can_start = False
        service.end_sidecar()
        with anyio.fail_after(scaled(10)):
            for _ in range(2):
                with pytest.raises((OutcomeUnknown, Unavailable)):
                    await store.append(NAME, b"x")
        [container] = store.statistics().containers
        assert (container.state, container.restarts) == ("failed", 5)


# --- where the chunks are -----------------------------------------------------------------------------


@pytest.mark.one_loop
async def test_chunks_may_be_in_a_bucket_which_counts_its_requests(
    here: Machine, elsewhere: Machine, server: S3Server
) -> None:
    s3 = S3Config(endpoint=server.url)
    chunks = {"chunks": f"s3://{BUCKET}/stores/first", "s3": s3}
    async with here.open(settings=chunks) as store:
        await fill(store)
        await store.flush()
        counted = store.statistics().s3
        assert counted is not None
        assert counted.puts > 0
    assert any(key.startswith("stores/first/containers/") for key in server.objects())
    # How the bucket is reached is recorded too.
    async with elsewhere.open(settings={"chunks": ""}) as store:
        assert await read_all(store) == b"".join(PIECES)
    with pytest.raises(StoreMismatch, match="correct `chunks`"):
        await refused(here.open())


async def test_where_the_chunks_are_has_its_golden_bytes(here: Machine) -> None:
    location = ChunkLocation("/shared/store", S3Config(region="eu-central-1"))
    assert encode_location(location) == GOLDEN.read_bytes()


async def test_a_new_store_needs_to_know_where_its_chunks_will_be(here: Machine) -> None:
    with pytest.raises(ConfigError, match="needs to know where its chunks will be.*--chunks"):
        await refused(here.open(settings={"chunks": ""}))
    assert not here.site.cluster.records


async def test_another_location_of_the_chunks_is_refused(here: Machine, tmp_path: Path) -> None:
    async with here.open():
        pass
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreMismatch, match="are in .*/shared, not in .*/other: correct `chunks`"):
        await refused(here.open(settings={"chunks": str(tmp_path / "other")}))
    # A slash at the end makes no other folder.
    async with here.open(settings={"chunks": f"{here.site.chunks}/"}):
        pass


async def test_a_lost_record_of_the_chunks_is_not_made_again(here: Machine) -> None:
    async with here.open():
        pass
    del here.site.cluster.records["/stores/first/chunks"]
    with pytest.raises(DataCorruption, match="where the chunks are is missing"):
        await refused(here.open())


async def test_the_folder_of_the_chunks_must_exist_be_empty_and_no_other_stores(
    here: Machine, site: LedgerSite, tmp_path: Path
) -> None:
    chunks = {"chunks": str(tmp_path / "absent")}
    with pytest.raises(InvalidArgument, match="there is no folder .*/absent: make it where all machines"):
        await refused(here.open(settings=chunks))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").touch()
    with pytest.raises(InvalidArgument, match="holds other files, such as 'letter'"):
        await refused(here.open(settings={"chunks": str(tmp_path / "home")}))
    (site.chunks / "lost+found").mkdir()
    async with here.open() as store:
        await fill(store)
        await store.flush()
    site.cluster.records.clear()
    with pytest.raises(StoreMismatch, match="has a store already"):
        await refused(here.open())
    assert not site.cluster.records, "nothing was made"


async def test_a_folder_that_is_not_mounted_is_reported_and_nothing_is_written_there(
    here: Machine, site: LedgerSite, tmp_path: Path
) -> None:
    async with here.open() as store:
        await fill(store)
    site.chunks.rename(tmp_path / "unmounted")
    site.chunks.mkdir()
    with anyio.fail_after(10):
        with pytest.raises(Unavailable, match="mounted"):
            await refused(here.open())
    assert not list(site.chunks.iterdir())


async def test_a_data_folder_has_its_chunks_in_no_other_folder(site: LedgerSite, tmp_path: Path) -> None:
    settings = site.settings(tmp_path / "cache")
    with pytest.raises(ConfigError, match="A folder is always lts/ in the data folder"):
        await refused(open_store(tmp_path / "data", config=settings))
    assert not (tmp_path / "data").exists()


# --- refused ------------------------------------------------------------------------------------------


async def refused(opening: AbstractAsyncContextManager[SegmentStore]) -> None:
    async with opening:
        raise AssertionError("it was opened")


async def test_too_few_bookies_are_reported_before_anybody_is_fenced(here: Machine, site: LedgerSite) -> None:
    async with here.open() as store:
        await fill(store)
        with pytest.raises(NotEnoughBookies, match="3 answer: start more"):
            await refused(here.open(settings={"bookkeeper": BookKeeperConfig(write_quorum=4)}))
        await store.append(NAME, b"more")
    site.cluster.bookies = 1
    with pytest.raises(NotEnoughBookies):
        await refused(here.open())


async def test_an_opening_warns_of_ledgers_that_need_every_bookie(
    here: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    async with here.open():
        assert "few_bookies" not in caplog.text
    async with here.open(settings={"bookkeeper": BookKeeperConfig(write_quorum=3)}):
        assert "few_bookies" in caplog.text


async def test_a_lost_identity_is_not_made_again(here: Machine) -> None:
    async with here.open() as store:
        await fill(store)
    del here.site.cluster.records["/stores/first/store"]
    with pytest.raises(DataCorruption, match="identity is missing") as caught:
        await refused(here.open())
    assert caught.value.file.endswith("/stores/first/store")


async def test_the_number_of_containers_is_fixed(here: Machine) -> None:
    async with here.open():
        pass
    with pytest.raises(StoreMismatch, match="was created with 1 containers, not 2"):
        await refused(here.open(containers=2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"storage": MemoryChunkStorage()}, "no storage of yours"),
        ({"recover_from_lts": True}, "data folder"),
    ],
)
async def test_arguments_that_make_no_sense_are_refused(
    here: Machine, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await refused(here.open(**arguments))


async def test_legacy_segments_are_for_data_folders(here: Machine) -> None:
    with pytest.raises(ConfigError, match="legacy"):
        await refused(here.open(settings={"layout": "layout-upgrade"}))
