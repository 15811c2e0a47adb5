"""What a host says over HTTP while long-term storage is away, and that it serves on (rule S7)."""

from __future__ import annotations

from pathlib import Path

import anyio
import attrs
import pytest

import tierlog
from support.http_server import serving
from support.patience import scaled
from support.stores import CONFIG
from tierlog import Unavailable
from tierlog.actors.settings.configuration import StorageConfig, WriterConfig
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, FaultyChunkStorage, every

pytestmark = pytest.mark.anyio


async def test_a_failure_and_its_end_are_reported_over_http(tmp_path: Path) -> None:
    chunks = FaultyChunkStorage(
        MemoryChunkStorage(),
        every(Fault(FaultKind.BEFORE), "create", "create_with_content", "write", "concat"),
    )
    quick = attrs.evolve(
        CONFIG,
        storage=StorageConfig(probe_interval=0.01, backoff=0.001, backoff_max=0.01),
        writer=WriterConfig(flush_age=0.05, error_pause=0.01),
    )
    async with (
        tierlog.open_store(tmp_path / "data", containers=1, config=quick, storage=chunks) as store,
        serving(store) as served,
        tierlog.connect(str(served.http.base_url)) as client,
    ):
        await client.create_segment("s")
        assert await client.append("s", b"before;") == 0
        with anyio.fail_after(scaled(30)):
            while (await served.http.get("/health")).json()["storage"]["state"] != "unreachable":
                with pytest.raises(Unavailable):
                    await store.flush()

        reported = (await served.http.get("/health")).json()
        assert reported["alive"]
        assert "cannot be reached" in reported["storage"]["cause"]
        assert (await served.http.get("/ready")).status_code == 200, "it answers all that it is asked"
        assert (
            'tierlog_storage_health_state{state="unreachable"} 1.0'
            in (await served.http.get("/metrics")).text
        )
        assert await client.append("s", b"meanwhile") == 7
        assert await client.read("s", 0, 100) == b"before;meanwhile"

        chunks.script = None
        with anyio.fail_after(scaled(30)):
            while (await client.segment_info("s")).flushed_length < 16:
                await anyio.sleep(0.01)
        assert (await served.http.get("/health")).json()["storage"] == {"state": "ok", "cause": ""}
