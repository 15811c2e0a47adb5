"""What `scripts/quickstart` does, once its environment is made; ``quickstart_options.py`` describes it."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The imports below take a while, and there is nothing to clean up yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, nullcontext
from functools import cached_property, partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import attrs
from quickstart_engines import ENGINES
from rich.progress import Progress
from rich.table import Table

import tierlog
from chaos_parts.joined_service import JoinedService
from chaos_parts.processes import PATIENCE, RunError, Worker, counted, until_signalled
from chaos_parts.service import TIERLOG, OwnService, Victim
from chaos_parts.sync_point import open_sync_point
from quickstart_options import parse
from tierlog import events
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.settings.units import KiB, MiB

SEGMENTS = 4
INPUT_BYTES_MAX = 32 * MiB
PIECE_BYTES_MAX = 256 * KiB
SETTINGS = """\
append_bytes_max = "4 MiB"
cache.bytes = "4 MiB"          # less than a segment of the standard text: most of it is read from chunks
writer.flush_bytes = "512 KiB"
writer.rolling_size = "1 MiB"  # so that every segment has several chunks
writer.flush_age = "24 h"      # flushes come by size or on request, and the last part stays in the log
"""


@attrs.frozen(slots=False)
class Segment:
    name: str
    pieces: list[bytes]
    """Its text. The last piece is appended after the flush."""

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)

    @cached_property
    def framed(self) -> bytes:
        """The bytes that the segment must have."""
        return events.encode(self.events())

    def events(self, first: int = 0, end: int | None = None) -> list[bytes]:
        """Every line of these pieces, with its line end."""
        return [line for piece in self.pieces[first:end] for line in piece.splitlines(keepends=True)]


def read_input(source: Path | None) -> bytes:
    """The first 32 MiB of a file, of all files below a folder, or of Python's standard library."""
    folder, names = (Path(sysconfig.get_path("stdlib")), "*.py") if source is None else (source, "*")
    text = bytearray()
    for path in sorted(folder.rglob(names)) if folder.is_dir() else [folder]:
        if path.is_file() and "site-packages" not in path.parts:
            with path.open("rb") as stream:
                text += stream.read(INPUT_BYTES_MAX - len(text))
    return bytes(text)


def split_text(text: bytes) -> list[Segment]:
    """The text in order, cut at line ends, over the segments."""
    size = max(1, min(len(text) // (SEGMENTS * 16), PIECE_BYTES_MAX))
    pieces, at = list[bytes](), 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + size) + 1 or text.find(b"\n", at + size) + 1 or len(text)
        pieces.append(text[at : min(end, at + PIECE_BYTES_MAX)])
        at += len(pieces[-1])
    if len(pieces) < 2 * SEGMENTS:
        raise RunError("the input is too short: give more text")

    bounds = [len(pieces) * number // SEGMENTS for number in range(SEGMENTS + 1)]
    parts = enumerate(pairwise(bounds), 1)
    return [Segment(f"quickstart/part-{number}", pieces[first:end]) for number, (first, end) in parts]


Append = Callable[[list[tuple[int, int]]], Awaitable[None]]
"""Appends pieces of each segment, from a number up to another."""


class Run:
    def __init__(self, service: OwnService | JoinedService, segments: list[Segment]) -> None:
        self._service = service
        self._segments = segments
        self._kill_at = sum(len(segment.text) - len(segment.pieces[-1]) for segment in segments) // 2
        self._turn = anyio.Lock()
        self._begun: dict[tuple[int, int], int] = {}
        """Bytes of the pieces that writers have begun to append; a retried piece counts once."""
        self._killed: Victim | None = None
        self.progress = Progress(disable=not sys.stdout.isatty())
        self._bytes = sum(len(segment.text) for segment in segments)
        self._bar = self.progress.add_task("starting", total=self._bytes)

    async def work(self, folder: Path, *, spark: bool, lose_wal: bool) -> None:
        """Write, kill, flush, write, read; lose the log, recover and read again; stop."""
        table = Table("segment", "events", "text", "with headers", "in chunks", "in log")
        async with self._service.running():
            async with tierlog.connect(self._service.url) as store:
                for segment in self._segments:
                    await store.create_segment(segment.name)
                client = nullcontext(partial(self._append, store))
                async with self._spark_writer(folder) if spark else client as append:
                    rate, failovers, longest = await self._write(store, append)
                await self._read("reading", store)
                for segment in self._segments:
                    info = await store.segment_info(segment.name)
                    in_log = info.length - info.flushed_length
                    row = (len(segment.events()), len(segment.text), info.length, info.flushed_length, in_log)
                    table.add_row(segment.name, *(f"{number:,}" for number in row))
                if lose_wal:
                    self.progress.update(self._bar, description="flushing to long-term storage")
                    await store.flush()
            if lose_wal:
                await self._recover_from_chunks()
        self.progress.stop()
        self.progress.console.print(table)
        print(f"written at {rate:.1f} MB/s, failovers included, which took up to {longest:.2f} s")
        print(f"verified {self._bytes} bytes in {SEGMENTS} segments, {failovers} failovers, 0 lost")
        if lose_wal:
            print(f"verified {self._bytes} bytes again, recovered from long-term storage alone, 0 lost")

    async def _read(self, what: str, store: tierlog.Client) -> None:
        self.progress.reset(self._bar, description=what)
        for segment in self._segments:
            await check_segment(store, segment)
            self.progress.advance(self._bar, len(segment.text))

    async def _recover_from_chunks(self) -> None:
        """Everything but long-term storage is lost; then every byte is read back."""
        service, show = self._service, partial(self.progress.console.print, highlight=False)
        assert isinstance(service, OwnService)
        killed = service.kill_now()
        await service.kill_everything()
        shutil.rmtree(service.folder / "wal")
        show(f"killed {killed} processes with SIGKILL and deleted wal/")
        command = [*TIERLOG, "recover", "--from-lts", "--json", "--data", str(service.folder)]
        done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
        if done.returncode:
            raise RunError(f"tierlog recover: {done.stdout.decode(errors='replace').strip()}")
        found = sum(each["segments"] for each in json.loads(done.stdout)["containers"])
        show(f"recovered {found} segments with `tierlog recover --from-lts`; the service starts again")
        service.start()
        await service.settled()
        async with tierlog.connect(service.url) as store:
            await self._read("reading what was recovered", store)

    async def _write(self, store: tierlog.Client, append: Append) -> tuple[float, int, float]:
        """Returns MB/s, failovers, and the seconds of the longest."""
        self.progress.update(self._bar, description="writing")
        begin = time.perf_counter()
        ends = [len(segment.pieces) for segment in self._segments]
        await append([(0, end - 1) for end in ends])
        rate = sum(self._begun.values()) / 1e6 / (time.perf_counter() - begin)
        found, longest = await self.failovers()
        self.progress.update(self._bar, description="flushing to long-term storage")
        await store.flush()
        await append([(end - 1, end) for end in ends])
        return rate, found, longest

    async def on_piece(self, segment: int, piece: int) -> None:
        """A writer waits here before it appends a piece."""
        if (segment, piece) in self._begun:
            return

        self._begun[segment, piece] = len(self._segments[segment].pieces[piece])
        async with self._turn:
            done = sum(self._begun.values())
            self.progress.update(self._bar, completed=done)
            if self._killed is None and done >= self._kill_at:
                victim = await self._service.owner(self._segments[segment].name)
                if not self._service.send_signal(victim, signal.SIGKILL):
                    raise RunError(f"{victim.name} ended before it could be killed: see the service's log")
                self._killed = victim
                note = f"killed {victim.name} (process {victim.pid}) with SIGKILL; the job goes on"
                self.progress.console.print(note, highlight=False)

    async def failovers(self) -> tuple[int, float]:
        """How many, and the seconds of the longest. Raises ``RunError`` unless a host was killed and all of
        its containers moved."""
        if self._killed is None:
            raise RunError("the work was done before a host was killed")

        status = await self._service.settled()
        found: int = status["failovers"]
        if found < len(self._killed.containers):
            raise RunError(
                f"{counted(len(self._killed.containers), 'container')} lost the host, {found} moved"
            )
        return found, max(status["failover_seconds"])

    async def _append(self, store: tierlog.Client, pieces: list[tuple[int, int]]) -> None:
        async with anyio.create_task_group() as tasks:
            for segment in range(SEGMENTS):
                tasks.start_soon(self.append_numbered, store, segment, *pieces[segment])

    async def append_numbered(self, store: tierlog.Client, index: int, first: int, end: int) -> None:
        """Append with tierlog's client. The last events are sent twice, like those of a client that never saw
        the answer, and must change nothing."""
        segment = self._segments[index]
        append = partial(store.append_many, segment.name, writer_id="quickstart")
        number, frames = len(segment.events(0, first)), list[bytes]()
        for piece in range(first, end):
            await self.on_piece(index, piece)
            frames = [events.encode([event]) for event in segment.events(piece, piece + 1)]
            await append(frames, first_event_number=number)
            number += len(frames)
        before = (await store.segment_info(segment.name)).length
        await append(frames[-100:], first_event_number=number - len(frames[-100:]))
        after = (await store.segment_info(segment.name)).length
        if after != before:
            raise RunError(f"segment {segment.name}: repeated events grew it from {before} to {after} bytes")

    @asynccontextmanager
    async def _spark_writer(self, folder: Path) -> AsyncIterator[Append]:
        """Batch jobs with tierlog's data source. After the body Spark reads everything back."""
        texts = folder / "input"
        texts.mkdir()
        for number, segment in enumerate(self._segments):
            for index, piece in enumerate(segment.pieces):
                (texts / f"{number}-{index}").write_bytes(piece)
        worker = await Worker.start("quickstart_spark", folder=folder / "spark")

        async def ask(pieces: list[tuple[int, int]] | None) -> Any:
            request = {"url": self._service.url, "port": port, "folder": str(texts), "pieces": pieces}
            answer = await worker.ask({**request, "segments": [segment.name for segment in self._segments]})
            if answer["failed"]:
                raise RunError(f"{answer['failed']}; see {worker.log} with --keep")
            return answer["found"]

        try:
            await worker.answer()
            async with open_sync_point(self.on_piece) as port:
                yield ask
                found = await ask(None)
            for segment in self._segments:
                if found[segment.name] != [len(segment.events()), sha256(segment.text).hexdigest()]:
                    raise RunError(f"segment {segment.name}: Spark read other events than were written")
            await worker.close()
        finally:
            await worker.kill()


async def check_segment(store: tierlog.Client, segment: Segment) -> None:
    """Read the whole segment through the service. Raises ``RunError`` at the first byte that differs from the
    text."""
    offset, size = 0, len(segment.framed)
    while block := await store.read(segment.name, offset, 4 * MiB):
        wanted = segment.framed[offset : offset + len(block)]
        if block != wanted:
            offset += next((at for at, byte in enumerate(wanted) if byte != block[at]), len(wanted))
            raise RunError(f"segment {segment.name}, offset {offset}: the service differs from the input")
        offset += len(block)
    if offset != size:
        raise RunError(f"segment {segment.name} ends at offset {offset}; the input makes {size} bytes")


def quickstart(options: argparse.Namespace, cleanup: ExitStack) -> int:
    if not Path("/proc/self/stat").exists():
        raise RunError("this needs Linux, because it looks at processes through /proc")
    segments = split_text(read_input(options.input))
    folder = (options.keep or Path(tempfile.mkdtemp(prefix="tierlog-quickstart-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.keep is None:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    service: OwnService | JoinedService
    if options.engine == "local":
        service = OwnService(folder, hosts=2, containers=4, config=SETTINGS)
    else:
        engine = ENGINES[options.engine]()
        cleanup.enter_context(engine.running(folder / options.engine))
        print(f"the store is {engine.place} on {engine.shown}")
        config = SETTINGS + engine.config
        service = JoinedService(folder, engine.place, hosts=2, containers=4, config=config)
    cleanup.callback(service.close)
    # It ends what hangs: a first start reads everything from a slow disk.
    service.patience = 2 * PATIENCE
    run = Run(service, segments)
    work = partial(run.work, folder, spark=not options.no_spark, lose_wal=options.lose_wal)
    with run.progress:
        return anyio.run(until_signalled, work, backend_options={"use_uvloop": True})


def main(arguments: list[str]) -> int:
    status = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ExitStack() as cleanup:
            status = quickstart(parse(arguments), cleanup)
    except* (RunError, tierlog.TierlogError, OSError) as errors:
        print(f"quickstart: {first_leaf(errors)}", file=sys.stderr)
    except* KeyboardInterrupt:
        status = 130
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
