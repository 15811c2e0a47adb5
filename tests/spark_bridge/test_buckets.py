"""Spark's executors read history out of a bucket, with credentials of their own: what is flushed without the
service, the rest through it, and all of it through the service where they cannot."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tierlog
from support.executors import ExecutorsOwn
from support.live_service import SyncOwnService
from support.s3 import s3_server
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.spark_bridge import events

PLACE = f"s3://{BUCKET}/a-store"
EVENTS = [b"%07d" % number + bytes(9_000) for number in range(2_000)]
"""17 MiB: more than a task reads ahead of what it has given to Spark."""
TAIL = [b"not flushed", b"nor this"]
BY_SERVICE = "history is read through the service, which is slower, because this executor cannot read"
CONFIG = f"""\
chunks = "{PLACE}"
[writer]
flush_age = "1 h"
flush_bytes = "64 MiB"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bucket") / "data"


@pytest.fixture(scope="module")
def url(server: S3Server, folder: Path) -> Iterator[str]:
    """A service with 2,000 flushed events in the segment `events`, and two that are not flushed."""
    config = folder.with_name("tierlog.toml")
    config.write_text(f'{CONFIG}[s3]\nendpoint = "{server.url}"\n')
    with SyncOwnService(folder, "--config", str(config), hosts=1, containers=1) as service:
        with tierlog.connect_sync(service.url) as store:
            store.create_segment("events")
            for start in range(0, len(EVENTS), 500):
                store.append("events", events.encode(EVENTS[start : start + 500]))
            store.flush()
            store.append("events", events.encode(TAIL))
        yield service.url


@pytest.fixture(autouse=True)
def known(server: S3Server, executors: ExecutorsOwn) -> None:
    """Executors have the right credentials and the right endpoint, and have logged nothing."""
    executors.know(server.url)
    executors.logged("")
    server.seen.clear()


def chunk_reads(server: S3Server) -> list[str]:
    """The keys of users' chunks that were read."""
    return [seen.key for seen in server.seen if seen.operation == "GetObject" and "/_system/" not in seen.key]


def found(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in frame.collect()]


Read = Callable[..., Any]


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_flushed_events_come_out_of_the_bucket_and_the_others_through_the_service(
    reader: Read, server: S3Server, executors: ExecutorsOwn, partitions: str
) -> None:
    assert found(reader("events", direct="always", minPartitions=partitions)) == EVENTS + TAIL
    assert len(chunk_reads(server)) >= 3
    assert executors.logged(BY_SERVICE) == []

    server.seen.clear()
    assert found(reader("events", direct="never", minPartitions=partitions)) == EVENTS + TAIL
    assert chunk_reads(server) == []


def test_a_stream_reads_the_bucket_too(
    spark: Any, url: str, server: S3Server, checkpoint: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("tierlog").option("endpoint", url).option("direct", "always")
    sink = stream.schema("value binary").load("events").writeStream.format("parquet")
    query = (
        sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(str(tmp_path / "out"))
    )

    assert query.awaitTermination(150)
    assert sorted(found(spark.read.parquet(str(tmp_path / "out")))) == sorted(EVENTS + TAIL)
    assert chunk_reads(server)


def no_credentials(executors: ExecutorsOwn, server: S3Server) -> str:
    executors.forget_credentials()
    return "there are no usable credentials for .*; set AWS_ACCESS_KEY_ID and"


def wrong_credentials(executors: ExecutorsOwn, server: S3Server) -> str:
    executors.know(server.url, access_key="of-somebody-else")
    return f"{server.url} does not know the access key; set AWS_ACCESS_KEY_ID and"


def nothing_listens(executors: ExecutorsOwn, server: S3Server) -> str:
    executors.know("http://127.0.0.1:9")
    return "http://127.0.0.1:9 cannot be reached: .*; check that it runs"


@pytest.mark.parametrize("lose", [no_credentials, wrong_credentials, nothing_listens])
def test_executors_that_cannot_read_the_bucket_warn_and_read_through_the_service(
    reader: Read, server: S3Server, executors: ExecutorsOwn, lose: Callable[[ExecutorsOwn, S3Server], str]
) -> None:
    """`storageLocation` makes the endpoint theirs."""
    from pyspark.errors import PySparkException

    reason = lose(executors, server)

    assert found(reader("events", storageLocation=PLACE)) == EVENTS + TAIL
    [warning] = executors.logged(BY_SERVICE)
    assert re.search(f"{reason}.*. Correct that, or set direct to never", warning)
    assert chunk_reads(server) == []
    with pytest.raises(PySparkException, match=f"option direct is 'always', and this executor .*{reason}"):
        reader("events", storageLocation=PLACE, direct="always").collect()


def test_a_bucket_of_another_name_is_reported(
    reader: Read, server: S3Server, executors: ExecutorsOwn
) -> None:
    assert found(reader("events", storageLocation="s3://no-such-bucket/a-store")) == EVENTS + TAIL
    [warning] = executors.logged(BY_SERVICE)
    assert f"there is no bucket no-such-bucket at {server.url}; make it, or correct its name" in warning


def test_a_bucket_that_goes_away_in_the_middle_leaves_the_rest_to_the_service(
    reader: Read, server: S3Server, executors: ExecutorsOwn
) -> None:
    """No event is left out, and none comes twice."""
    chunk = "a-store/containers/"
    server.fail(Fault("GetObject", chunk, rate=1e9), Fault("GetObject", chunk, times=1_000, drop=True))

    try:
        assert found(reader("events")) == EVENTS + TAIL
    finally:
        server.heal()
    statuses = [seen.status for seen in server.seen if seen.key.startswith(chunk)]
    assert 200 <= statuses[0] < 300
    assert 0 in statuses
    [warning] = executors.logged(BY_SERVICE)
    assert "no valid answer to get_object" in warning


def test_a_dead_store_is_read_out_of_its_bucket(
    spark: Any, server: S3Server, executors: ExecutorsOwn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)  # for the service
    place = f"s3://{BUCKET}/dead"
    with (
        SyncOwnService(tmp_path / "data", "--chunks", place, hosts=1, containers=2) as service,
        tierlog.connect_sync(service.url) as store,
    ):
        for name in ("app/a", "app/b"):
            store.create_segment(name)
            store.append(name, events.encode(EVENTS[:900]))
        store.flush()
    shutil.rmtree(tmp_path / "data")

    def load(lts: str, **options: str) -> Any:
        return spark.read.format("tierlog").options(lts=lts, **options).load()

    assert found(load(place, segment="app/a", minPartitions="3")) == EVENTS[:900]
    assert found(load(place, segmentPrefix="app/")) == EVENTS[:900] * 2
    for wrong, message in (
        (f"s3://{BUCKET}/elsewhere", "this is no long-term storage of a store"),
        ("s3://no-such-bucket/dead", "there is no bucket no-such-bucket"),
    ):
        with pytest.raises(PySparkException, match=message):
            load(wrong, segment="app/a").collect()
    executors.forget_credentials()
    with pytest.raises(PySparkException, match="there are no usable credentials"):
        load(place, segment="app/a").collect()
