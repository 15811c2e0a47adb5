"""A store that is in a bucket as a whole: opened from any machine, fenced by the next opening, and the errors
when the bucket is not right."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.http_server import until
from support.remote_stores import NAME, PIECES, PLACE, BucketMachine, fill, read_all, refused
from support.s3_server import BUCKET, Fault, S3Server
from tierlog import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    SegmentStore,
    StoreMismatch,
    Unsupported,
    open_lts,
    open_store,
)
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig, StoreConfig
from tierlog.actors.store import shared
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.shared import SharedOpener, service_folder
from tierlog.actors.supervisor.served_store import ServedStore, StoreAsked, open_served
from tierlog.journal.log.contract import LogStatistics
from tierlog.storage_backends.base.files import Program, RemoveFolder
from tierlog.storage_backends.chunks import s3_requests
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

CHARGED_AS = {
    "PutObject": "puts",
    "GetObject": "gets",
    "HeadObject": "gets",
    "ListObjectsV2": "lists",
    "ListMultipartUploads": "lists",
    "DeleteObject": "deletes",
}


@pytest.fixture
def here(server: S3Server, tmp_path: Path) -> BucketMachine:
    return BucketMachine(tmp_path / "here", server)


@pytest.fixture
def elsewhere(server: S3Server, tmp_path: Path) -> BucketMachine:
    return BucketMachine(tmp_path / "elsewhere", server)


@pytest.mark.parametrize("inner", ["wal/x", "lts/a/b", "store", "beside"])
async def test_a_store_is_not_made_inside_another_one(
    here: BucketMachine, server: S3Server, inner: str
) -> None:
    async with here.open():
        pass
    before = set(server.objects())
    message = f"{PLACE}/{inner}/ is inside the store {PLACE}/: name that one"
    with pytest.raises(InvalidArgument, match=message):
        async with here.open(f"{PLACE}/{inner}"):
            pass
    # Nor are the chunks of one whose logs are elsewhere.
    with pytest.raises(InvalidArgument, match=message):
        async with open_store(here.disk.with_name("data"), config=here.settings(chunks=f"{PLACE}/{inner}")):
            pass
    assert set(server.objects()) == before
    # The first part of a name is none of its parts.
    async with here.open(f"{PLACE}{inner.replace('/', '-')}"):
        pass


async def test_a_store_that_takes_a_whole_bucket_says_so_once(
    here: BucketMachine, caplog: pytest.LogCaptureFixture
) -> None:
    for place, count in ((PLACE, 0), (f"s3://{BUCKET}", 1), (f"s3://{BUCKET}", 1)):
        if count:
            for key in here.server.objects():
                if key.startswith("stores/"):
                    here.server.remove(key)
        async with here.open(place):
            assert caplog.text.count("whole_bucket") == count


async def test_a_store_is_not_made_inside_long_term_storage(here: BucketMachine) -> None:
    async with open_store(
        here.disk.with_name("data"), config=here.settings(chunks=f"{PLACE}/chunks")
    ) as store:
        await fill(store)
        await store.flush()
    with pytest.raises(InvalidArgument, match=f"is inside the long-term storage {PLACE}/chunks/: name"):
        async with here.open(f"{PLACE}/chunks/app"):
            pass


async def test_a_store_is_not_made_around_another_one(here: BucketMachine, server: S3Server) -> None:
    inner = f"{PLACE}/containers/0000"
    async with here.open(inner):
        pass
    before = set(server.objects())
    message = f"{PLACE}/ is around another store, {inner}/: name that one"
    with pytest.raises(InvalidArgument, match=message):
        async with here.open():
            pass
    # Nor are the chunks of one whose logs are elsewhere.
    with pytest.raises(InvalidArgument, match=message):
        async with open_store(here.disk.with_name("data"), config=here.settings(chunks=PLACE)):
            pass
    assert set(server.objects()) == before
    assert not here.disk.with_name("data").exists()


def served_by(
    machine: BucketMachine, bucket: str = BUCKET, *, stands_by: bool
) -> AbstractAsyncContextManager[ServedStore]:
    """As a supervisor on this machine opens the store."""
    asked = StoreAsked(
        place=S3Location(bucket, "stores/first/"),
        config=machine.settings(),
        containers=1,
        take_over=False,
        stands_by=stands_by,
    )
    return open_served(asked, LocalFiles(), system_world())


async def test_v1_a_supervisor_that_joins_makes_no_store_where_there_was_one(
    here: BucketMachine, elsewhere: BucketMachine, server: S3Server
) -> None:
    """It is started again by its system, perhaps, after the bucket was emptied by mistake."""

    async def identity_of(machine: BucketMachine, *, stands_by: bool) -> bytes:
        async with served_by(machine, stands_by=stands_by) as served:
            return served.identity.store_id

    made = await identity_of(here, stands_by=True)
    assert await identity_of(here, stands_by=True) == made
    for key in server.objects():
        server.remove(key)
    with pytest.raises(InvalidArgument, match=f"had store {made.hex()} when .* and has none now: put its"):
        await identity_of(here, stands_by=True)
    assert server.objects() == {}

    other = await identity_of(here, stands_by=False)
    assert other != made
    assert await identity_of(here, stands_by=True) == await identity_of(elsewhere, stands_by=True) == other


@pytest.mark.parametrize("stands_by", [False, True])
async def test_a_misspelt_place_leaves_no_folder_among_the_local_copies(
    here: BucketMachine, stands_by: bool
) -> None:
    with pytest.raises(ConfigError, match="misspelt"):
        async with served_by(here, "misspelt", stands_by=stands_by):
            raise AssertionError("there is none")
    assert list(here.disk.glob("*")) == []
    async with served_by(here, stands_by=stands_by):
        pass
    assert [path.name for path in here.disk.glob("*-service/*")] == ["store"]


async def test_another_start_that_fails_may_remove_the_empty_folder_of_one_that_succeeds(
    here: BucketMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember, removed = shared._remember, list[str]()

    def remember_later(memory: str, *known: Any) -> Program[None]:
        if not removed:
            removed.append(memory)
            yield RemoveFolder(memory.rpartition("/")[0])
        yield from remember(memory, *known)

    monkeypatch.setattr(shared, "_remember", remember_later)
    opener = SharedOpener(
        S3Location(BUCKET, "stores/first/"),
        here.settings(),
        adopt=False,
        span=None,
        world=system_world(),
        files=LocalFiles(),
    )
    async with opener.served(1):
        pass
    assert [str(path) for path in here.disk.glob("*-service/*")] == removed


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
async def test_v1_what_a_machine_knows_of_a_store_is_of_one_s3_service(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have a bucket of the same name."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)

    def folder(endpoint: str, bucket: str = BUCKET) -> str:
        cache = ChunkCacheConfig(path=str(tmp_path))
        config = StoreConfig(chunk_cache=cache, s3=S3Config(endpoint=endpoint))
        return service_folder(config, S3Location(bucket, "st/")).path

    one, two = "http://127.0.0.1:9000", "http://127.0.0.1:9001"
    assert len({folder(one), folder(two), folder(""), folder("", "other")}) == 4
    assert folder(f"{one}/") == folder(one)
    monkeypatch.setenv(variable, one)
    assert folder("") == folder(one)
    assert folder(two) != folder(one), "the configuration has precedence"


async def test_credentials_may_be_for_the_prefix_alone(here: BucketMachine, server: S3Server) -> None:
    for key in ("_system/store", "stores/store"):
        server.fail(Fault("GetObject", key=key, refuse=(403, "AccessDenied")))
    async with here.open() as store:
        await fill(store)


async def test_everything_is_below_the_prefix_and_nothing_needed_is_local(
    here: BucketMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with here.open() as store:
        await fill(store)
        await store.flush()
    keys = {key.removeprefix("stores/first/") for key in here.server.objects()}
    assert {key.split("/")[0] for key in keys} == {"store", "trial", "wal", "lts"}
    assert [path.name for path in tmp_path.iterdir()] == ["here"]

    # Users' bytes are chunks that every tool can read.
    async with open_lts(f"{PLACE}/lts", config=here.settings()) as view:
        assert await read_all(view) == b"".join(PIECES)


async def test_without_a_setting_local_copies_are_in_the_users_cache(
    here: BucketMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with here.open(config=here.settings(chunk_cache=ChunkCacheConfig())) as store:
        await fill(store)
        await store.flush()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tierlog"]
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


async def test_a_folder_for_local_copies_that_cannot_be_used_fences_nobody(
    here: BucketMachine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    async with here.open() as store:
        await fill(store)
        broken = here.settings(chunk_cache=ChunkCacheConfig(path=str(tmp_path / "file" / "cache")))
        with pytest.raises(InvalidArgument, match="a part of this path is a file"):
            await refused(here.open(config=broken))
        await store.append(NAME, b"more")


async def test_local_copies_may_be_removed(here: BucketMachine) -> None:
    async with here.open() as store:
        await fill(store)
        await store.flush()
    shutil.rmtree(here.disk)
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES)
        await store.append(NAME, b"more")
        await store.flush()
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES) + b"more"


async def test_a_store_lives_on_through_failing_requests(here: BucketMachine) -> None:
    refused = (503, "SlowDown")
    dropped = partial(Fault, "PutObject", applied=True, drop=True)
    here.server.fail(
        Fault("GetObject", key="/first/store", refuse=refused),
        dropped(key="/first/store"),
        dropped(key="/first/trial"),
        dropped(key="/register", times=2),
        Fault("ListObjectsV2", key="/wal/", refuse=refused),
        dropped(key="/g/", times=3),
        Fault("PutObject", key="/g/", refuse=(409, "ConditionalRequestConflict"), times=2),
    )
    async with here.open() as store:
        await fill(store)
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES)


async def test_an_idle_store_makes_no_request(here: BucketMachine) -> None:
    async with here.open() as store:
        await fill(store)
        await store.flush()
        here.server.seen.clear()
        await anyio.sleep(0.3)
        assert not here.server.seen


async def test_appends_that_wait_share_a_put(here: BucketMachine) -> None:
    paced = here.settings(s3_log=S3LogConfig(pace=0.2))
    async with here.open(config=paced) as store:
        await store.create_segment(NAME)
        before = requests_of(store).puts
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(store.append, NAME, b"x")
        assert requests_of(store).puts - before <= 4


async def test_a_few_groups_are_no_reason_for_a_checkpoint(here: BucketMachine) -> None:
    """Each is an object, as a file of a local log is, but costs an opening less than a checkpoint."""
    async with here.open() as store:
        await fill(store)
        current = store.statistics().containers[0].current
        assert current is not None
        assert current.checkpoints.checkpoints == 0


@pytest.mark.extended
async def test_an_opening_fetches_few_groups_however_many_small_ones_there_were(here: BucketMachine) -> None:
    async with here.open() as store:
        await store.create_segment(NAME)
        for _ in range(3):
            for _ in range(150):
                await store.append(NAME, b"x")
            await store.flush()
        before = requests_of(store).puts
    assert before > 450
    async with here.open() as store:
        current = store.statistics().containers[0].current
        assert current is not None
        assert 0 < current.recovery.groups < 300
        info = await store.segment_info(NAME)
        assert info.length == 450


async def test_requests_of_the_log_are_counted(here: BucketMachine) -> None:
    async with here.open() as store:
        await fill(store)

        def are_all_counted() -> bool:
            counted = requests_of(store)
            seen = [seen.operation for seen in here.server.seen if "/wal/" in seen.key]
            return (counted.puts, counted.gets) == (seen.count("PutObject"), seen.count("GetObject"))

        # The store logs by itself too: a request that is on its way is counted, and not seen yet.
        await until(are_all_counted)
        assert requests_of(store).puts > len(PIECES)


async def test_every_request_to_the_bucket_is_counted_by_the_kinds_that_are_charged(
    here: BucketMachine,
) -> None:
    async with here.open() as store:
        await fill(store)
        await store.flush()
        await read_all(store)

        def are_all_counted() -> bool:
            seen = Counter(CHARGED_AS[seen.operation] for seen in here.server.seen)
            counted = store.statistics().s3
            assert counted is not None
            return attrs.asdict(counted) == {kind: seen[kind] for kind in attrs.asdict(counted)}

        await until(are_all_counted)
        assert {CHARGED_AS[seen.operation] for seen in here.server.seen} >= {"puts", "gets", "lists"}


def requests_of(store: SegmentStore) -> LogStatistics:
    current = store.statistics().containers[0].current
    assert current is not None
    return current.log


# --- refused ------------------------------------------------------------------------------------------


async def test_a_missing_bucket_is_named(here: BucketMachine) -> None:
    with pytest.raises(ConfigError, match="there is no bucket no-such-bucket"):
        await refused(here.open("s3://no-such-bucket/store"))


async def test_wrong_credentials_are_refused(here: BucketMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    here.server.fail(Fault("ListObjectsV2", refuse=(403, "SignatureDoesNotMatch"), times=5))
    with pytest.raises(ConfigError, match="the secret key does not belong to the access key"):
        await refused(here.open())


async def test_a_service_without_conditional_puts_is_refused_and_nothing_is_made(
    here: BucketMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_if = s3_requests.S3Requests.put_if

    async def unconditional(self: Any, key: str, name: str, data: Any, version: str) -> str:
        """Whatever there is, it is overwritten."""
        with_no_condition = monkeypatch.context
        with with_no_condition() as patch:
            patch.setattr(s3_requests, "_NEW", {})
            return await put_if(self, key, name, data, "")

    monkeypatch.setattr(s3_requests.S3Requests, "put_if", unconditional)
    with pytest.raises(Unsupported, match="no conditional puts"):
        await refused(here.open())
    assert set(here.server.objects()) == {"stores/first/trial"}


async def test_long_term_storage_of_a_data_folder_is_refused(here: BucketMachine, tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", config=here.settings(chunks=PLACE), containers=1) as store:
        await fill(store)
    with pytest.raises(StoreMismatch, match="logs elsewhere"):
        await refused(here.open())


async def test_a_data_folder_does_not_take_its_chunks(here: BucketMachine, tmp_path: Path) -> None:
    async with here.open() as store:
        await fill(store)
    with pytest.raises(StoreMismatch, match="has a store already"):
        await refused(open_store(tmp_path / "data", config=here.settings(chunks=f"{PLACE}/lts")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"place": "s3://"}, "is not a location in S3"),
        ({"place": "s3://user:password@bucket"}, "no user name"),
    ],
)
async def test_places_that_make_no_sense_are_refused(
    here: BucketMachine, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        await refused(here.open(**arguments))
    assert "password@" not in str(caught.value)


async def test_settings_that_make_no_sense_are_refused(here: BucketMachine) -> None:
    for more, words in (
        ({"chunks": f"s3://{BUCKET}/other"}, "leave the setting out"),
        ({"layout": "layout-upgrade"}, "legacy"),
    ):
        with pytest.raises(ConfigError, match=words):
            await refused(here.open(config=here.settings(**more)))


async def test_a_bucket_is_no_data_folder(
    here: BucketMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere a folder with that name would be made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="is in a bucket"):
        await refused(open_store(Path(PLACE)))
    assert not list(tmp_path.iterdir())


async def test_w8_a_store_without_its_logs_is_refused_however_often_it_is_opened(here: BucketMachine) -> None:
    """A new log begins with epoch 1, and each opening raises it."""
    async with here.open() as store:
        await fill(store)
        await store.flush()
    for key in here.server.objects():
        if "/wal/" in key:
            here.server.remove(key)
    for _ in range(4):
        with pytest.raises((StoreMismatch, DataCorruption)):
            await refused(here.open())
