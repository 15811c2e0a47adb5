"""A store on BookKeeper: opened from any machine, fenced by the next opening, its chunks where it was made to
have them, and the errors when something is not right. The ledgers and records are in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from support.ledger_stores import LedgerSite, in_memory
from support.live_service import name_in
from support.patience import scaled
from support.remote_stores import NAME, PIECES, LedgerMachine, fill, read_all, refused
from support.s3_server import BUCKET, S3Server
from support.stores import make
from tierlog import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    OutcomeUnknown,
    SegmentStore,
    StoreMismatch,
    Unavailable,
    open_lts,
    open_store,
)
from tierlog.actors.container.statistics import ContainerStatistics
from tierlog.actors.folder.chunk_location import ChunkLocation, encode_location
from tierlog.actors.settings.configuration import BookKeeperConfig, CheckpointConfig, S3Config
from tierlog.actors.store import ledgers
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.storage_backends.base.ledger_service import NotEnoughBookies

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "chunks_of_a_shared_store.txt"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerSite:
    return in_memory(tmp_path, monkeypatch)


@pytest.fixture
def here(site: LedgerSite, tmp_path: Path) -> LedgerMachine:
    return LedgerMachine(tmp_path / "here", site)


@pytest.fixture
def elsewhere(site: LedgerSite, tmp_path: Path) -> LedgerMachine:
    return LedgerMachine(tmp_path / "elsewhere", site)


async def test_records_are_below_the_path_and_chunks_in_the_folder(
    here: LedgerMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
async def test_a_store_is_not_made_inside_another_one(
    here: LedgerMachine, tmp_path: Path, inner: str
) -> None:
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


@pytest.mark.parametrize("inner", ["logs/x", "b", "a/b/c"])
async def test_a_store_is_not_made_around_another_one(
    here: LedgerMachine, tmp_path: Path, inner: str
) -> None:
    other = f"{here.site.place}/{inner}"
    async with open_store(other, config=here.site.settings(here.disk), containers=1):
        pass
    (tmp_path / "others").mkdir()
    with pytest.raises(InvalidArgument, match=f"{here.site.place} is around another store, {other}: name"):
        async with here.open(settings={"chunks": str(tmp_path / "others")}):
            pass


@pytest.mark.parametrize("outer", ["ledgers", "data"])
async def test_chunks_are_not_made_inside_another_store(
    here: LedgerMachine, tmp_path: Path, outer: str
) -> None:
    if outer == "ledgers":
        async with here.open():
            above = here.site.chunks
            message = f"is inside the long-term storage {above}: name"
    else:
        async with open_store(tmp_path / "data", containers=1):
            above = tmp_path / "data" / "lts"
            message = f"is inside the (long-term storage|store) {tmp_path / 'data'}"
    shared = above / "b"
    shared.mkdir()
    with pytest.raises(InvalidArgument, match=message):
        async with open_store(f"{here.site.place}-b", config=here.settings(chunks=str(shared))):
            pass
    assert list(shared.iterdir()) == []


async def test_a_data_folder_is_not_made_inside_the_chunks_of_a_store(here: LedgerMachine) -> None:
    async with here.open():
        pass
    inner = here.site.chunks / "data"
    with pytest.raises(InvalidArgument, match=f"{inner} is inside the long-term storage {here.site.chunks}"):
        async with open_store(inner, containers=1):
            pass
    assert not inner.exists()


async def test_chunks_are_not_made_around_another_store(
    here: LedgerMachine, server: S3Server, tmp_path: Path
) -> None:
    more = {"chunks": f"s3://{BUCKET}/p9/q", "s3": S3Config(endpoint=server.url)}
    async with open_store(tmp_path / "data", containers=1, config=here.settings(**more)) as store:
        await make(store, "s", b"x")
        await store.flush()
    more["chunks"] = f"s3://{BUCKET}/p9"
    with pytest.raises(
        InvalidArgument, match=f"s3://{BUCKET}/p9/ is around another store, s3://{BUCKET}/p9/q/"
    ):
        async with here.open(settings=more):
            pass
    assert here.site.cluster.records == {}


async def test_b11_the_end_of_a_sidecar_ends_all_owners_at_once_and_every_container_recovers(
    here: LedgerMachine, site: LedgerSite
) -> None:
    """Idle ones too: nobody calls them meanwhile."""
    names = [name_in(container, 2) for container in range(2)]
    async with here.open(containers=2) as store:
        for name in names:
            await make(store, name, b"before ")
        [service] = site.services
        service.end_sidecar()
        with anyio.fail_after(scaled(10)):
            while {each.restarts for each in store.statistics().containers} != {1}:
                await anyio.sleep(0.001)
        for name in names:
            await store.append(name, b"after", writer_id="me", event_number=1)
            assert await store.read(name, 0, 100) == b"before after"
        assert service.sidecars == 2


async def test_b11_containers_whose_sidecar_does_not_start_again_are_given_up_soon(
    here: LedgerMachine, site: LedgerSite
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


def statistics_of(store: SegmentStore) -> ContainerStatistics | None:
    return store.statistics().containers[0].current


@pytest.mark.one_loop
async def test_b10_without_zookeeper_reads_and_duplicates_are_refused_and_appends_go_on(
    here: LedgerMachine, site: LedgerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do flushes, checkpoints and what the container does by itself."""
    options = partial(BookKeeperLogOptions, patience=0.05, first_delay=0.01, longest_delay=0.01)
    monkeypatch.setattr(ledgers, "BookKeeperLogOptions", options)
    async with here.open(settings={"checkpoint": CheckpointConfig(wal_bytes=1 << 20)}) as store:
        await make(store, NAME, b"one")
        first = await store.append(NAME, b"two", writer_id="me", event_number=1)
        [service] = site.services
        service.has_records = False
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: store.read(NAME, 0, 3),
            lambda: store.append(NAME, b"two", writer_id="me", event_number=1),
            lambda: store.append(NAME, b"x", expected_offset=0),
            lambda: store.segment_info(NAME),
            lambda: store.segment_info("app/none"),
            lambda: store.create_segment(NAME),
        ]
        for call in refused:
            with pytest.raises(Unavailable, match="ZooKeeper does not answer"):
                await call()
            await store.append(NAME, b"more")
        for _ in range(4):
            await store.append(NAME, bytes(300_000))
        await store.flush()
        with anyio.fail_after(scaled(10)):
            while (found := statistics_of(store)) and not found.checkpoints.checkpoints:
                await anyio.lowlevel.checkpoint()
        with pytest.raises(Unavailable):
            await refused[0]()  # it waits for the checkpoint's truncation
        service.has_records = True
        assert await store.append(NAME, b"two", writer_id="me", event_number=1) == first
        assert await store.read(NAME, 0, 6) == b"onetwo"
        [container] = store.statistics().containers
        assert (container.state, container.restarts) == ("active", 0)


async def test_w12_a_duplicate_that_waits_for_zookeeper_delays_no_append_behind_it(
    here: LedgerMachine, site: LedgerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append proves the ownership for the duplicate before it."""
    async with here.open() as store:
        await make(store, NAME, b"one")
        first = await store.append(NAME, b"two", writer_id="me", event_number=1)
        asked = anyio.Event()

        async def check(path: str, version: int) -> bool:
            asked.set()
            await anyio.sleep_forever()
            return False

        repeated: list[int | None] = []

        async def repeat() -> None:
            repeated.append(await store.append(NAME, b"two", writer_id="me", event_number=1))

        with monkeypatch.context() as patch, anyio.fail_after(scaled(10)):
            patch.setattr(site.services[0], "check", check)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(repeat)
                await asked.wait()
                assert await store.append(NAME, b"three") == 6
        assert repeated == [first]
        assert await store.read(NAME, 0, 20) == b"onetwothree"


@pytest.mark.one_loop
async def test_b10_a_store_ends_in_order_without_zookeeper(
    here: LedgerMachine,
    site: LedgerSite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    options = partial(BookKeeperLogOptions, patience=0.05, first_delay=0.01, longest_delay=0.01)
    monkeypatch.setattr(ledgers, "BookKeeperLogOptions", options)
    async with here.open() as store:
        await make(store, NAME, b"one")
        site.services[0].has_records = False
    assert "container_lifecycle" in caplog.text
    assert "Unavailable" not in caplog.text
    assert "Unconfirmed" not in caplog.text
    async with here.open() as store:
        assert await store.read(NAME, 0, 3) == b"one"


# --- where the chunks are -----------------------------------------------------------------------------


@pytest.mark.one_loop
async def test_chunks_may_be_in_a_bucket_which_counts_its_requests(
    here: LedgerMachine, elsewhere: LedgerMachine, server: S3Server
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


async def test_where_the_chunks_are_has_its_golden_bytes(here: LedgerMachine) -> None:
    location = ChunkLocation("/shared/store", S3Config(region="eu-central-1"))
    assert encode_location(location) == GOLDEN.read_bytes()


async def test_a_new_store_needs_to_know_where_its_chunks_will_be(here: LedgerMachine) -> None:
    with pytest.raises(ConfigError, match="needs to know where its chunks will be.*--chunks"):
        await refused(here.open(settings={"chunks": ""}))
    assert not here.site.cluster.records


async def test_another_location_of_the_chunks_is_refused(here: LedgerMachine, tmp_path: Path) -> None:
    async with here.open():
        pass
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreMismatch, match="are in .*/shared, not in .*/other: correct `chunks`"):
        await refused(here.open(settings={"chunks": str(tmp_path / "other")}))
    # A slash at the end makes no other folder.
    async with here.open(settings={"chunks": f"{here.site.chunks}/"}):
        pass


async def test_r11_the_lost_log_of_a_container_is_not_advised_to_be_recovered_alone(
    here: LedgerMachine, site: LedgerSite
) -> None:
    """No command recovers one container of a place that all machines reach."""
    async with here.open() as store:
        await fill(store)
        await store.flush()
    for path in [path for path in site.cluster.records if "/logs/" in path]:
        del site.cluster.records[path]
    advice = r"log is lost. The one at bookkeeper://\S+ holds nothing.*--from-lts --data FOLDER --chunks"
    with pytest.raises(StoreMismatch, match=advice):
        await refused(here.open())


async def test_a_lost_record_of_the_chunks_is_not_made_again(here: LedgerMachine) -> None:
    async with here.open():
        pass
    del here.site.cluster.records["/stores/first/chunks"]
    with pytest.raises(DataCorruption, match="where the chunks are is missing"):
        await refused(here.open())


async def test_the_folder_of_the_chunks_must_exist_be_empty_and_no_other_stores(
    here: LedgerMachine, site: LedgerSite, tmp_path: Path
) -> None:
    chunks = {"chunks": str(tmp_path / "absent")}
    with pytest.raises(
        InvalidArgument, match="there is no folder .*/absent: mount what all machines .* inside of it"
    ):
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
    here: LedgerMachine, site: LedgerSite, tmp_path: Path
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


async def test_too_few_bookies_are_reported_before_anybody_is_fenced(
    here: LedgerMachine, site: LedgerSite
) -> None:
    async with here.open() as store:
        await fill(store)
        with pytest.raises(NotEnoughBookies, match="3 answer: start more"):
            await refused(here.open(settings={"bookkeeper": BookKeeperConfig(write_quorum=4)}))
        await store.append(NAME, b"more")
    site.cluster.bookies = 1
    with pytest.raises(NotEnoughBookies):
        await refused(here.open())


async def test_an_opening_warns_of_ledgers_that_need_every_bookie(
    here: LedgerMachine, caplog: pytest.LogCaptureFixture
) -> None:
    async with here.open():
        assert "few_bookies" not in caplog.text
    async with here.open(settings={"bookkeeper": BookKeeperConfig(write_quorum=3)}):
        assert "few_bookies" in caplog.text


async def test_legacy_segments_are_for_data_folders(here: LedgerMachine) -> None:
    with pytest.raises(ConfigError, match="legacy"):
        await refused(here.open(settings={"layout": "layout-upgrade"}))
