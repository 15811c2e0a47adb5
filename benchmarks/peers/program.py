"""The program that is killed and started again in place of a server, where there is none:
``python -m benchmarks.peers.program tierlog FOLDER COUNT`` appends COUNT events in a new folder, or one more
if that is 0, prints a line, and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from benchmarks.harness import payloads
from benchmarks.peers.contract import EVENT_BYTES, fill
from benchmarks.peers.streams import running_sqlite, running_store


async def main(*arguments: str) -> None:
    name, folder, count = arguments
    is_new, path = count != "0", Path(folder)
    opened = (
        running_store(path, create=is_new)
        if name == "tierlog"
        else running_sqlite(path / "events.db", create=is_new)
    )
    async with opened as peer:
        await fill(peer, 0, int(count) or 1, payloads(EVENT_BYTES))
        print("acked", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:], backend="asyncio", backend_options={"use_uvloop": True})
