"""Loses everything but long-term storage, again and again, and proves that what was flushed comes back.

It starts `tierlog serve` on a temporary folder. Exactly-once writers append, tables change, segments are
merged and truncated, transactions are committed and aborted, and all is flushed again and again. In each
round every process is killed with SIGKILL at a random moment, `wal/` is deleted, or everything but `lts/`,
and `tierlog recover --from-lts` makes the store from what is left. Everything that a returned flush() covered
must be there, and what came later in part, in its order: per segment the first of what was sent; merges and
transactions whole or not at all; tables and the attributes of merges as they were after one update. The
writers go on from there and leave neither a gap nor a duplicate.

  scripts/chaos_lts_only.py --rounds 5
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

import tierlog
from chaos_parts.campaign import Options, Run, check_leftovers
from chaos_parts.command_line import carry_out, make_parser, parse_options, settings
from chaos_parts.ledger import Writer
from chaos_parts.lts_loads import Events, Load, Merges, Rows, Transactions, compare_events
from chaos_parts.processes import RunError
from chaos_parts.report import Report
from chaos_parts.service import TIERLOG, OwnService, Service
from chaos_parts.writers import segment_names

_SMALL = """
[writer]
flush_bytes = "32 KiB"
flush_age = "1 s"
rolling_size = "64 KiB"

[gc]
delay = "0 s"
"""
_WRITERS = 3
"""Writers of each segment of events."""
_COMMAND_SECONDS = 120.0


class _Store:
    """The loads of one run."""

    def __init__(self, containers: int) -> None:
        self.loads: list[Load] = []
        self.writers: dict[str, list[Writer]] = {}
        for index, name in enumerate(segment_names("chaos/events", containers)):
            made = [Writer(f"w{index}.{each}", name, index, numbered=True) for each in range(_WRITERS)]
            self.writers[name] = made
            self.loads += [Events(name, writer) for writer in made]
        for kind, prefix in ((Merges, "merges"), (Transactions, "transactions"), (Rows, "rows")):
            self.loads += [kind(name) for name in segment_names(f"chaos/{prefix}", containers)]

    async def create(self, store: tierlog.Client) -> None:
        for load in self.loads:
            await load.create(store)
        await store.flush()

    async def check(self, run: Run, store: tierlog.Client) -> None:
        """Compare all that was recovered. Raises ``RunError``."""
        for load in self.loads:
            run.report.count("steps lost after the last flush", await load.check(store))
        for name, writers in self.writers.items():
            run.report.bytes += await compare_events(store, name, writers)
        for load in self.loads:
            if isinstance(load, Events):
                await load.send_again(store)


class _Round:
    def __init__(self, run: Run, store: _Store, service: OwnService) -> None:
        self._run = run
        self._store = store
        self._service = service
        self._flushes = 0
        self._first_flush = anyio.Event()

    async def carry_out(self, *, keep_runs: bool) -> None:
        await self._work_until_killed()
        await self._lose(keep_runs=keep_runs)
        await self._recover()
        self._service.start()
        await self._service.settled()
        async with tierlog.connect(self._service.url) as client:
            await self._store.check(self._run, client)

    async def _work_until_killed(self) -> None:
        """The loads run, and every process is killed while their calls are under way."""
        acked = sum(load.acked for load in self._store.loads)
        began, seed = time.monotonic(), self._run.random.random()
        async with tierlog.connect(self._service.url) as client, AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            for load in self._store.loads:
                tasks.start_soon(load.run, client)
            tasks.start_soon(self._flush, client, random.Random(seed))
            await self._first_flush.wait()
            await anyio.sleep(self._run.random.uniform(0, 1.5))
            # Nobody is answered between the kill and the end of the tasks.
            self._service.kill_now()
            tasks.cancel_scope.cancel()
        await self._service.kill_everything()
        self._run.report.seconds += time.monotonic() - began
        self._run.report.acked += sum(load.acked for load in self._store.loads) - acked
        self._run.report.count("flushes", self._flushes)

    async def _flush(self, client: tierlog.Client, chance: random.Random) -> None:
        while True:
            await anyio.sleep(chance.choice((0, 0, 0.05, 0.3)))
            for load in self._store.loads:
                load.mark()
            await client.flush()
            for load in self._store.loads:
                load.note_flushed()
            self._flushes += 1
            self._first_flush.set()

    async def _lose(self, *, keep_runs: bool) -> None:
        self._run.begin_fault("loss of wal/" if keep_runs else "loss of all but lts/")
        folder = self._service.folder
        for entry in list(folder.iterdir()):
            if entry.name == "wal" or (not keep_runs and entry.name != "lts"):
                _remove(entry)

    async def _recover(self) -> None:
        folder = str(self._service.folder)
        await self._command("lts", "verify", folder)
        began = time.monotonic()
        recovered = await self._command("recover", "--from-lts", "--data", folder, "--json")
        self._run.report.samples_of("tierlog recover --from-lts").values.append(time.monotonic() - began)
        missing = [each["container"] for each in recovered["containers"] if not each["cycle"]]
        if missing:
            raise RunError(f"containers {missing} were recovered without a flush, and all were flushed")
        await self._command("verify", "--data", folder)

    async def _command(self, *arguments: str) -> Any:
        """Run `tierlog`. Raises ``RunError`` if it fails."""
        command = [*TIERLOG, *arguments]
        with anyio.fail_after(_COMMAND_SECONDS):
            done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip()[-1000:]
            raise RunError(f"tierlog {arguments[0]} ended with exit status {done.returncode}: {said}")
        return json.loads(done.stdout) if "--json" in arguments else None

    async def confirm(self) -> None:
        """Chunks that only the lost logs knew are deleted from now on."""
        await self._command("gc", "sweep", "--confirm", "--yes", "--url", self._service.url)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


async def work(run: Run) -> None:
    """The rounds; each begins with what the one before has recovered. Raises ``RunError``."""
    service = run.service
    assert isinstance(service, OwnService)
    store = _Store(run.options.containers)
    async with service.running():
        async with tierlog.connect(service.url) as client:
            await store.create(client)
        for _ in range(run.options.rounds):
            each = _Round(run, store, service)
            await each.carry_out(keep_runs=run.random.random() < 0.5)
            if run.random.random() < 0.5:
                await each.confirm()
            run.advance()
        async with tierlog.connect(service.url) as client:
            await client.flush()
        run.report.events = sum(load.acked for load in store.loads)
    check_leftovers(run, service)


def _make_service(options: Options, folder: Path) -> Service:
    config = settings(options) + _SMALL
    return OwnService(folder, hosts=options.hosts, containers=options.containers, config=config)


def main(arguments: Sequence[str]) -> int:
    options = parse_options(make_parser("lts_only", __doc__, rounds=5, writers=False), arguments)
    return carry_out(options, Report("lts_only", options.seed), work, _make_service)
