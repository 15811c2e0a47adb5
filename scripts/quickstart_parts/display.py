"""What is shown: bars while it runs, on a terminal; a table and one line at the end, anywhere."""

from __future__ import annotations

from typing import Self

import attrs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from quickstart_parts.checking import SegmentReport
from quickstart_parts.shares import Share


@attrs.define
class Figures:
    """What was measured."""

    segments: list[SegmentReport] = attrs.field(factory=list)
    chunks: list[int] = attrs.field(factory=list)
    """Of each segment."""
    killed: int = 0
    failovers: int = 0
    failover_seconds: float = 0.0
    """The longest."""
    repeated: int = 0
    write_seconds: float = 0.0
    flush_seconds: float = 0.0
    spark_seconds: float = 0.0
    """Of reading with Spark; 0 without it."""
    read_seconds: float = 0.0
    bytes_from_chunks: int = 0

    @property
    def text(self) -> int:
        return sum(segment.text for segment in self.segments)


class Display:
    def __init__(self, shares: list[Share]) -> None:
        self._console = Console()
        self._shares = shares
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._bars = [
            self._progress.add_task(f"write {share.name}", total=len(share.data)) for share in shares
        ]

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """A line that only people at a terminal see."""
        if self._console.is_terminal:
            self._progress.console.print(text, highlight=False)

    def written(self, passed: list[int]) -> None:
        for bar, size in zip(self._bars, passed, strict=True):
            self._progress.update(bar, completed=size)

    def begin_reading(self) -> None:
        for bar, share in zip(self._bars, self._shares, strict=True):
            self._progress.reset(bar, total=len(share.data), description=f"read  {share.name}")

    def read(self, index: int, size: int) -> None:
        self._progress.update(self._bars[index], completed=size)

    def table(self, figures: Figures) -> None:
        table = Table("segment", "events", "bytes", "in chunks", "in the log", "chunks", "sha256")
        for column in table.columns[1:6]:
            column.justify = "right"
        for part, chunks in zip(figures.segments, figures.chunks, strict=True):
            numbers = (part.events, part.text, part.flushed, part.length - part.flushed, chunks)
            table.add_row(part.name.partition("/")[2], *map(str, numbers), part.sha256[:8])
        self._console.print(table)
        self._console.print("\n".join(rates(figures)), highlight=False, soft_wrap=True)


def rates(figures: Figures) -> list[str]:
    """What the table does not say."""
    lines = []
    if figures.killed:
        lines.append(
            f"{_count(figures.killed, 'host')} killed with SIGKILL, "
            f"{_count(figures.failovers, 'container')} failed over within "
            f"{figures.failover_seconds * 1000:.0f} ms"
        )
    if figures.write_seconds:
        repeated = f", {figures.repeated} events sent twice on purpose" if figures.repeated else ""
        written = _rate(figures.text, figures.write_seconds)
        lines.append(
            f"written at {written} (kills and failovers included), flushed in {figures.flush_seconds:.2f} "
            f"s{repeated}"
        )
    spark = f"with Spark at {_rate(figures.text, figures.spark_seconds)}, " if figures.spark_seconds else ""
    chunks = f"{figures.bytes_from_chunks / 1e6:.1f} MB of it from chunks"
    lines.append(f"read back {spark}without it at {_rate(figures.text, figures.read_seconds)}, {chunks}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _rate(size: int, seconds: float) -> str:
    return f"{size / 1e6 / seconds:.1f} MB/s"
