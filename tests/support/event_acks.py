"""The acks of event writers, compared with what a store holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs

from support.event_writer import SEGMENTS, event
from tierlog.actors.store.store import SegmentStore

PROGRAM = Path(__file__).with_name("event_writer.py")


def start_writer(folder: Path, seed: int, name: str = "w", *events: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(folder), str(seed), name, *map(str, events)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def whole_lines(output: str) -> list[str]:
    """The whole lines of an output; a kill may have cut off the last one."""
    return [line.rstrip("\n") for line in output.splitlines(keepends=True) if line.endswith("\n")]


@attrs.define
class Acks:
    """By (segment, writer, first number): (last number, offset)."""

    acked: dict[tuple[str, str, int], tuple[int, int]] = attrs.field(factory=dict)

    def record(self, name: str, lines: list[str]) -> int:
        """Add a writer's acks; returns how many there were."""
        count = 0
        for line in lines:
            words = line.split()
            if len(words) == 4:
                self.acked[words[0], name, int(words[1])] = (int(words[2]), int(words[3]))
                count += 1
        return count

    async def check(self, store: SegmentStore) -> int:
        """Every acked event is there exactly once, in order, at its acked offset; nothing else is
        there.

        Returns how many events there are.
        """
        held = {segment: await read_segment(store, segment) for segment in SEGMENTS}
        places = {segment: _places(segment, data) for segment, data in held.items()}
        for (segment, name, first), (last, offset) in self.acked.items():
            missing = [number for number in range(first, last + 1) if (name, number) not in places[segment]]
            assert not missing, (
                f"{segment}: acked events {missing[:5]} of {name} are gone (of {first} to {last})"
            )
            assert offset in (-1, places[segment][name, first]), (
                f"{segment}: event {first} of {name} is not at {offset}"
            )
        return sum(map(len, places.values()))


def _places(segment: str, data: bytes) -> dict[tuple[str, int], int]:
    """(writer, number) -> offset; each writer's events are whole, dense and in order."""
    places: dict[tuple[str, int], int] = {}
    last: dict[str, int] = {}
    position = 0
    for line in data.splitlines(keepends=True):
        words = line.split(b" ")
        name, number = words[0].decode(), int(words[1])
        assert line == event(name, number), f"{segment}: broken event at {position}: {line[:40]!r}"
        assert number == last.get(name, 0) + 1, (
            f"{segment}: event {number} of {name} at {position} follows {last.get(name, 0)}"
        )
        last[name] = number
        places[name, number] = position
        position += len(line)
    return places


async def read_segment(store: SegmentStore, segment: str) -> bytes:
    if segment not in await store.list_segments(segment):
        return b""
    info = await store.segment_info(segment)
    data = bytearray()
    while len(data) < info.length:
        data += await store.read(segment, len(data), 1 << 20)
    return bytes(data)
