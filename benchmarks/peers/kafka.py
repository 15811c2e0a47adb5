"""Kafka: one broker that is its own controller, and a topic with a partition for each stream. Its files are
fetched once, as those of BookKeeper's client are, from Maven Central or the mirror in
TIERLOG_MAVEN_MIRROR."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.peers.applications import Connector, SparkPeer
from benchmarks.peers.contract import HISTORY, Kind, Peer, Restarts
from benchmarks.peers.servers import Loaded, Server, ServerRestarts, free_port, run_to_end, served
from benchmarks.spark import PARTITIONS
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.ledgers.install import MAVEN_CENTRAL, download
from tierlog.storage_backends.ledgers.installed import (
    Installation,
    default_folder,
    read_artifacts,
    size_of,
)
from tierlog.storage_backends.ledgers.java_runtime import check_java, find_java

_ARTIFACTS = read_artifacts(Path(__file__).with_name("kafka.txt"))
_VERSION = "4.3.1"
_CONNECTOR_VERSION = "4.2.0"
_TOPIC = "events"
_BATCH_BYTES = 1 << 20
_SPARK_BATCH_BYTES = 512 << 10
"""Two of them fit into a request."""
_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExplicitGCInvokesConcurrent")
"""As Kafka's own scripts start it."""
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def _installation() -> Installation:
    return Installation(default_folder().parent / "kafka")


def _prepare() -> str:
    """Downloads what is not there, 54 MB at first."""
    if find_spec("aiokafka") is None:
        return "the package aiokafka is not installed: pip install 'tierlog[peers]'"

    installation = _installation()
    try:
        check_java(find_java())
        if any(size_of(installation.jar(each)) != each.size for each in _ARTIFACTS):
            print("bench: downloading Kafka and its connector for Spark, 54 MB", file=sys.stderr)
            mirror = os.environ.get("TIERLOG_MAVEN_MIRROR") or MAVEN_CENTRAL
            anyio.run(download, installation, _ARTIFACTS, mirror, lambda done, found: None)
    except TierlogError as error:
        return str(error)
    return ""


class Kafka:
    """Appends wait for the broker's answer, ``acks=all``. What comes together is sent together, at once."""

    def __init__(self, address: str, producer: Any, *, synced: bool) -> None:
        self._address = address
        self._producer = producer
        self._synced = synced

    async def create(self) -> None:
        await self.create_topic(_TOPIC, HISTORY + 1)

    async def create_topic(self, name: str, partitions: int) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        settings = {"flush.messages": "1"} if self._synced else {}
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            topic = NewTopic(name, partitions, 1, topic_configs=settings)
            await admin.create_topics([topic])
        finally:
            await admin.close()

    async def append(self, stream: int, event: bytes) -> None:
        await self._producer.send_and_wait(_TOPIC, event, partition=stream)

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        batch = self._producer.create_batch()
        for event in events:
            batch.append(key=None, value=event, timestamp=None)
        await (await self._producer.send_batch(batch, _TOPIC, partition=stream))

    async def count(self) -> int:
        async with self._consumer() as consumer:
            return sum((await consumer.end_offsets(self._partitions(range(HISTORY + 1)))).values())

    async def settle(self) -> None:
        """It has no deferred work that a client can ask for."""

    @asynccontextmanager
    async def follow(self, stream: int) -> AsyncIterator[AsyncGenerator[bytes]]:
        async with self._consumer() as consumer:
            [partition] = self._partitions([stream])
            consumer.assign([partition])
            await consumer.seek_to_end(partition)
            await consumer.position(partition)
            yield (record.value async for record in consumer)

    async def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        async with self._consumer() as consumer:
            [partition] = self._partitions([stream])
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            while count:
                found = await consumer.getmany(timeout_ms=10_000)
                events = [record.value for records in found.values() for record in records][:count]
                yield events
                count -= len(events)

    def _consumer(self) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            bootstrap_servers=self._address,
            enable_auto_commit=False,
            max_partition_fetch_bytes=4 << 20,
            auto_offset_reset="earliest",
        )

    @staticmethod
    def _partitions(streams: Sequence[int]) -> list[Any]:
        from aiokafka import TopicPartition

        return [TopicPartition(_TOPIC, stream) for stream in streams]


def _server(folder: Path) -> Server:
    port, settings = free_port(), folder / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=free_port(), data=folder / "data"))
    path = os.pathsep.join(str(_installation().jar(each)) for each in _ARTIFACTS if each.group == "server")
    java = [find_java(), *_JVM, f"-Djava.io.tmpdir={folder}", "-cp", path]
    cluster = "dGllcmxvZy1wZWVycy0wMQ"
    run_to_end([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)])
    return Server([*java, "kafka.Kafka", str(settings)], folder, port)


@asynccontextmanager
async def _connect(server: Server, *, synced: bool) -> AsyncIterator[Kafka]:
    from aiokafka import AIOKafkaProducer

    # It warns of each attempt that a new partition, without its leader, refuses.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    address = f"127.0.0.1:{server.port}"
    producer = AIOKafkaProducer(
        bootstrap_servers=address, acks="all", max_batch_size=_BATCH_BYTES, retry_backoff_ms=20
    )
    async with producer:
        yield Kafka(address, producer, synced=synced)


@asynccontextmanager
async def _open(folder: Path, *, synced: bool) -> AsyncIterator[Peer]:
    server = await anyio.to_thread.run_sync(_server, folder)
    async with served(server, partial(_connect, synced=synced)) as peer:
        yield peer


@asynccontextmanager
async def _restarts(folder: Path) -> AsyncIterator[Restarts]:
    server = await anyio.to_thread.run_sync(_server, folder)
    yield ServerRestarts(server, partial(_connect, synced=True), Loaded(folder), loader=server)


@asynccontextmanager
async def _spark(folder: Path) -> AsyncIterator[SparkPeer]:
    server = await anyio.to_thread.run_sync(_server, folder)
    place = {"kafka.bootstrap.servers": f"127.0.0.1:{server.port}"}
    writes = {**place, "topic": "{target}", "kafka.acks": "all", "kafka.batch.size": str(_SPARK_BATCH_BYTES)}
    jars = [_installation().jar(each) for each in _ARTIFACTS if each.group == "spark"]
    connector = Connector("kafka", writes, {**place, "subscribe": "{target}"}, jars)
    try:
        server.start()
        await server.answer()
        async with _connect(server, synced=True) as peer:
            yield SparkPeer(connector, folder, create=partial(peer.create_topic, partitions=PARTITIONS))
    finally:
        server.stop()


def _opens(*, synced: bool) -> Callable[[Path], AbstractAsyncContextManager[Peer]]:
    return partial(_open, synced=synced)


def _version() -> str:
    return f"Kafka {_VERSION}, aiokafka {version('aiokafka')}, spark-sql-kafka {_CONNECTOR_VERSION}"


KINDS = (
    Kind(
        "kafka",
        "Kafka, synced",
        "service",
        "the message is synced, one replica (`acks=all`, `flush.messages=1`)",
        is_synced=True,
        open=_opens(synced=True),
        version=_version,
        restarts=_restarts,
        spark=_spark,
        prepare=_prepare,
    ),
    Kind(
        "kafka-default",
        "Kafka, default",
        "service",
        "the message is in the page cache of one replica (`acks=all`)",
        is_synced=False,
        open=_opens(synced=False),
        version=_version,
        prepare=_prepare,
        leaves_out={"restart": "as with syncs"},
    ),
)
