"""Tails: a reader that waits at a segment's end gives up after a while; there must have been nothing to
deliver.

``TailWatch`` inspects the living container: whether bytes, a seal, the segment's end or the container's own
end are there for the reader. Waking costs no I/O, so what is there at one check and still undelivered at the
next one was missed. Only what needs nothing else counts: bytes must be in memory, since long-term storage may
be slow, and nobody may be reading the register in a bucket; a seal or an end must be durable, so
nothing may be in the pipeline; and the process must not have been frozen in between. Whether the delivered
bytes are right is checked by ``NextBlock``.
"""

from __future__ import annotations

from types import AsyncGeneratorType

import attrs
import trio

from support.live_segments import cold_images
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.container.container import Container
from tierlog.actors.container.local_container import LocalContainer, RemoteContainer
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.kernel.use_guard import GuardedGenerator
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.s3_log import S3Log

from .file_layer import SimulatedFiles
from .gates import Gate
from .model import Block
from .model_calls import NextBlock

TAIL_SECONDS = 1.0
CHECKS = 20


class MissedWakeup(AssertionError):
    """There was something to tell, and a tail waited on."""


@attrs.frozen
class NoBlock:
    """What a client got that gave up."""

    withheld: str = ""
    """What it should have got."""


async def await_block(
    gate: Gate, op: NextBlock, blocks: GuardedGenerator[bytes], store: SegmentStore
) -> Block | NoBlock:
    """The next block; an empty one at the end of a sealed segment."""
    listening = TailWatch(gate, store._containers.find(op.name), op)
    silence, failure, block = NoBlock(), None, b""
    with trio.CancelScope() as waiting:

        async def give_up() -> None:
            nonlocal silence
            before = ""
            for _ in range(CHECKS):
                await trio.sleep(TAIL_SECONDS / CHECKS)
                news = listening.news()
                if news and news == before:
                    silence = NoBlock(f"{op.name!r} at {op.offset}: {news}")
                    break
                before = news
            waiting.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            try:
                block = await anext(blocks, b"")
            except BaseException as error:  # noqa: BLE001 - raised below, outside the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return Block(block, _followed(blocks) or op.segment_id)
    return silence


def _followed(blocks: GuardedGenerator[bytes]) -> int:
    """The id of the segment that a tail of the store follows; 0 if it has ended."""
    generator = blocks._generator
    assert isinstance(generator, AsyncGeneratorType)
    sid: int = 0 if generator.ag_frame is None else generator.ag_frame.f_locals["sid"]
    return sid


class TailWatch:
    """A tail of ``op`` that begins to wait now."""

    def __init__(self, gate: Gate, host: LocalContainer | RemoteContainer, op: NextBlock) -> None:
        self._gate = gate
        self._op = op
        self._host = host
        self._container = self._host.active
        segment = None if self._container is None else _loaded(self._container, op.name)
        self._sid: int | None = op.segment_id or (
            None if segment is None or segment.durable_length < 0 else segment.sid
        )

    def news(self) -> str:
        """What a waiter should have got by now, and in which epoch of the container; "" if
        nothing is certain."""
        gate, host = self._gate, self._host
        if not gate.alive or gate.frozen or not isinstance(host, LocalContainer):
            return ""
        container = host.active
        if self._is_left_behind(container):
            return "the container that it waits in has stopped"
        if container is not None and (_reads_storage(container) or _is_asked(container)):
            return ""
        found = "" if container is None or self._sid is None else self._of(container, self._sid)
        return (
            found
            and f"{found} (epoch {container.state.epoch if container else 0}, frozen {gate.freezes} times)"
        )

    def _is_left_behind(self, active: Container | None) -> bool:
        container = self._container
        if container is None or container is active or not container.mailbox.closed:
            return False
        segment = _loaded(container, self._op.name)
        return segment is not None and segment.waiter is not None

    def _of(self, container: Container, sid: int) -> str:
        op, segment = self._op, _loaded(container, self._op.name)
        if segment is not None and segment.sid == sid:
            if segment.durable_length > op.offset:
                return (
                    f"there are bytes to {segment.durable_length}"
                    if _is_in_memory(container, segment, op.offset)
                    else ""
                )
            return "it is sealed" if segment.sealed and _is_at_rest(container) else ""
        is_cold = sid in cold_images(container)
        return "it is gone" if not is_cold and _is_at_rest(container) else ""


def _loaded(container: Container, name: str) -> SegmentState | None:
    """The segment, if it is in memory: the check must not load it."""
    return container.state.segments.in_memory(name)


def _is_in_memory(container: Container, segment: SegmentState, offset: int) -> bool:
    if offset < segment.start_offset:
        return False  # a reader waits for that truncation to be durable
    for merge in segment.merges:
        source = container.state.segments.by_id.get(merge.source)
        if merge.offset <= offset < merge.offset + merge.length:
            return source is not None and _is_in_memory(container, source, offset - merge.offset)
    return bool(container.cache.slices(segment.sid, offset, offset + 1))


def _is_at_rest(container: Container) -> bool:
    pipeline = container._components.pipeline
    return not pipeline._in_flight and pipeline._building.is_empty


def _is_asked(container: Container) -> bool:
    """Whether the register in a bucket is being read: nothing is delivered before that (rule W12)."""
    return isinstance(container.log, (S3Log, BookKeeperLog)) and container.log._confirmation._turn.locked()


def _reads_storage(container: Container) -> bool:
    """Whether reads of long-term storage or of sorted runs are under way: a tail may be in one, and sees the
    rest when it is back."""
    assert isinstance(container.chunks, StorageClient)
    assert isinstance(container.copies._files, SimulatedFiles)
    reads = container.chunks._actor.statistics().reads
    return bool(reads.running or reads.queue.normal.count or container.copies._files.is_busy)
