"""Over the network: ``tierlog serve`` with one host, and a client with its session; and as the reference the
bare loop behind a socket."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import tierlog
from benchmarks.peers import bare_service
from benchmarks.peers.applications import Connector, SparkPeer
from benchmarks.peers.contract import ONLY_APPENDS, Kind, Peer, Restarts
from benchmarks.peers.servers import Created, Loaded, Server, ServerRestarts, free_port, served, started
from benchmarks.peers.streams import Segments
from benchmarks.spark import PARTITIONS

# --- the bare service ---------------------------------------------------------------------------


def _open_bare(folder: Path) -> AbstractAsyncContextManager[Peer]:
    port = free_port()
    command = [sys.executable, bare_service.__file__, str(port), str(folder / "bare.log")]
    return served(Server(command, folder, port), lambda server: bare_service.connect(server.port))


# --- tierlog ------------------------------------------------------------------------------------


def _server(folder: Path) -> Server:
    port = free_port()
    data = str(folder / "data")
    options = ["--hosts=1", f"--listen=127.0.0.1:{port}"]
    return Server([sys.executable, "-m", "tierlog", "serve", data, *options], folder, port)


@asynccontextmanager
async def _connect(server: Server) -> AsyncIterator[Created]:
    async with tierlog.connect(f"http://127.0.0.1:{server.port}") as client:
        yield Segments(client)


def _open(folder: Path) -> AbstractAsyncContextManager[Peer]:
    return served(_server(folder), _connect)


@asynccontextmanager
async def _restarts(folder: Path) -> AsyncIterator[Restarts]:
    server = _server(folder)
    yield ServerRestarts(server, _connect, Loaded(folder), loader=server)


@asynccontextmanager
async def _spark(folder: Path) -> AsyncIterator[SparkPeer]:
    server = _server(folder)
    options = {"endpoint": f"http://127.0.0.1:{server.port}", "segment": "{target}"}
    reads = {**options, "minPartitions": str(PARTITIONS), "includeMetadata": "false"}
    try:
        async with started(server, _connect) as peer:
            yield SparkPeer(Connector("tierlog", options, reads), folder, settle=peer.settle)
    finally:
        server.stop()


KINDS = (
    Kind(
        "bare-service",
        "bare loop, service",
        "service",
        "as the bare loop, behind a socket: a Python server and client that do nothing else",
        is_synced=True,
        open=_open_bare,
        version=lambda: "",
        leaves_out=dict.fromkeys(("delivery", "history", "restart"), ONLY_APPENDS),
    ),
    Kind(
        "tierlog-service",
        "tierlog, service",
        "service",
        "the event is synced in the log",
        is_synced=True,
        open=_open,
        version=lambda: f"tierlog {tierlog.__version__}",
        restarts=_restarts,
        spark=_spark,
    ),
)
