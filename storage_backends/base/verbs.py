"""The verbs of a store, with their documentation: one text for the embedded store and for the clients.

``SegmentStore`` and ``Client`` derive from ``SegmentVerbs`` and leave their methods' docstrings out:
``help()`` and editors show these. A class with the same verbs in another form, such as ``SyncClient``, takes
them over with ``@copy_docstrings(SegmentVerbs)``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from .arguments import JoinedAppend, WriterId
from .backups import Backup
from .checksum import Buffer
from .errors import TierlogError
from .segment_layout import SegmentLayout
from .segments import (
    ATTRIBUTE_PAGE,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    AttributePage,
    AttributeUpdate,
    SegmentInfo,
    SegmentPage,
)
from .transactions import (
    LEASE_DEFAULT,
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionPage,
    TransactionToken,
)

if TYPE_CHECKING:
    from .table import Table

C = TypeVar("C", bound=type)


class ReadVerbs(Protocol):
    """The verbs that change nothing. Every answer is durable, "not found" included.

    Each of them can raise ``InvalidArgument``, ``ClosedError``, ``Unavailable`` (the container is recovering
    or long-term storage does not answer: try again) and ``NotOwner``.
    """

    async def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes:
        """Returns up to ``size`` bytes from ``offset`` on. ``size`` is 1 byte to 64 MiB.

        The result can be shorter than ``size``. It is ``b""`` only at or past the end of the segment, whether
        the segment is sealed or not.

        ``history`` is the one that ``offset`` is of, as ``segment_info(name).history`` gave it. Pass it with
        an offset from before the store was opened: after a recovery from long-term storage alone there may be
        other bytes. Without it only an offset past the end shows that the caller knows bytes that are lost.

        Raises:
            HistoryLost: ``offset`` is of a history that is lost.
            SegmentNotFound: There is no such segment.
            SegmentTruncated: ``offset`` lies before the start of the segment.
            DataCorruption: Stored bytes do not match their checksum, or are missing.
        """
        ...

    def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20, history: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the segment's bytes from ``offset`` on, in blocks of at most ``block_size`` bytes (default
        1 MiB), and waits for more at the end of the segment.

        A segment that was truncated begins at ``segment_info(name).start_offset``; an ``offset`` before it, 0
        included, raises ``SegmentTruncated``. Ends once the segment is sealed and read to its end. A recovery
        of the container, or its move to another host, is not visible to the caller. ``history`` is that of
        ``offset``, as in ``read``. A client's tail goes on across a recovery from long-term storage alone up
        to where bytes are lost, and raises ``HistoryLost`` there.

        Raises the errors of ``read``; ``SegmentNotFound`` also if the segment is deleted in the meantime.
        """
        ...

    async def segment_info(self, name: str) -> SegmentInfo:
        """Returns the segment's length, start offset, seal, first attributes, flushed length and container,
        all as of one moment.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage:
        """Returns a page of the segment's attributes whose names begin with ``prefix``, in order; with a
        ``prefix`` of up to 16 bytes, ``b""`` for all, of those that have ids.

        A page has the first ``limit`` attributes (1 to 4,096) behind ``after``, all as of one moment. To get
        the next page, pass the page's ``after``: a name or an id, which stays valid.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        """Returns offsets in ``start <= offset < end`` at which appends begin, in ascending order. Use them
        to divide a segment among readers without cutting an append.

        The store keeps about one start per MiB, so the list is a sample, and two calls can return different
        ones. A call returns at most 4,096 offsets; ask again from the last one on for more. No data is read.

        Raises:
            InvalidArgument: ``start`` is above ``end``.
            SegmentNotFound: There is no such segment.
        """
        ...

    async def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        """Returns which chunks of long-term storage have the flushed bytes of ``start <= offset < end``, with
        their checksums, and where that storage is. Use it to read history without the store in between.

        A call returns at most 1,000 chunks and the checksums of 64 GiB; ask again from the page's
        ``next_start`` on for more. What is behind ``flushed_length`` is only in the store. No data is read.

        Raises:
            InvalidArgument: ``start`` is above ``end``.
            SegmentNotFound: There is no such segment.
            DataCorruption: A record of the segment is damaged or missing.
        """
        ...

    def table(self, name: str) -> Table:
        """Returns the verbs of the table ``name``, without asking whether there is one."""
        ...

    async def list_segments(self, prefix: str = "") -> list[str]:
        """Returns the names that begin with ``prefix``, sorted: those of all pages of ``page_of_segments``,
        which takes less memory where there are very many.

        Staged segments of transactions are listed only if ``prefix`` contains ``#txn.``.
        """
        ...

    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        """Returns the next of the names that begin with ``prefix``, sorted, of all containers: at most
        ``limit`` (1 to 1,000).

        There are more as long as the page has a token, even if it has no names. ``token`` is that of the page
        before, which was asked for with the same prefix; it stays valid across restarts. Of each container a
        page is as of one moment: a segment that exists while all of them are read is in one of them, once.

        Raises:
            InvalidArgument: The token is of another prefix.
        """
        ...

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        """Returns the number of the writer's newest event in the segment, or None if the segment does not
        know the writer. A restarted writer goes on after it.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        """Returns what is known of one transaction.

        Raises:
            TransactionNotFound: It never began, or it ended so long ago that it was forgotten.
        """
        ...

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        """Returns the known transactions, open and ended, whose target's name begins with ``prefix``, sorted
        by target and id: those of all pages of ``page_of_transactions``, which takes less memory where there
        are very many.
        """
        ...

    async def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        """Returns the next of these transactions, of all containers: at most ``limit`` (1 to 256).

        There are more as long as the page has a token, even if it has none. ``token`` is that of the page
        before, which was asked for with the same prefix; it stays valid across restarts. Of each container a
        page is as of one moment: a transaction that is known while all of them are read is in one of them,
        once.

        Raises:
            InvalidArgument: The token is of another prefix.
        """
        ...

    def container_of(self, name: str) -> int:
        """Returns the index of the container that serves the segment ``name``, from 0 on.

        Segments whose names agree up to the first ``#`` share a container.
        """
        ...


class SegmentVerbs(ReadVerbs, Protocol):
    """All verbs of a store.

    A verb that changes something returns once the change is durable. If it is cancelled, or raises
    ``OutcomeUnknown``, the change may or may not happen. Besides its own errors and those of ``ReadVerbs``
    (``InvalidArgument``, ``ClosedError``, ``Unavailable``, ``NotOwner``) each of them can raise
    ``Throttled``, ``StorageFull`` and ``OutcomeUnknown``.

    A ``writer_id`` is a str, bytes or UUID of 1 to 64 bytes; a str counts in UTF-8, a UUID is 16 bytes. Event
    numbers are 0 to 2**63 - 1.
    """

    async def create_segment(
        self, name: str, *, rolling_size: int | None = None, exist_ok: bool = False
    ) -> None:
        """Creates an empty segment.

        ``rolling_size`` is the size in bytes at which a chunk of the segment is closed and the next one
        begun, 64 KiB to 1 TiB; each chunk costs a call to long-term storage. Default: the setting
        ``writer.rolling_size``. With ``exist_ok`` an existing segment is left as it is, whatever its rolling
        size.

        Raises:
            SegmentExists: There is a segment of that name, and ``exist_ok`` is not set.
            WrongSegmentKind: There is a table of that name, and ``exist_ok`` is set.
            OutcomeUnknown: Without ``exist_ok``, and only from a client: an earlier attempt of this call may
                have created the segment.
        """
        ...

    async def create_table(self, name: str, *, exist_ok: bool = False) -> None:
        """Creates an empty table: a segment with rows in place of bytes, for ``table``. With ``exist_ok`` an
        existing table is left as it is.

        Raises:
            SegmentExists: There is a segment of that name, and ``exist_ok`` is not set.
            WrongSegmentKind: There is a segment of bytes of that name, and ``exist_ok`` is set.
            OutcomeUnknown: As in ``create_segment``.
        """
        ...

    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        """Appends ``data`` and returns the offset of its first byte, once it is durable.

        ``data`` has at most ``append_bytes_max`` bytes (default 8 MiB). With ``expected_offset`` it is
        applied only if the segment is exactly that long.

        An append with ``writer_id`` and ``event_number`` is idempotent: a number that was applied before
        changes nothing, and returns the original's offset if it is the writer's newest event, else None. A
        writer begins with any number; from then on numbers are contiguous, unless ``previous_event_number``
        names the one before.

        ``history`` is the one that the number and ``expected_offset`` are of, as ``segment_info(name)`` gave
        it; pass it if they are from before the store was opened. Without it, in a segment that a recovery
        from long-term storage alone brought back, an event that does not follow the recovered ones, and an
        offset past the end, count as of the lost history; a writer that is not known there begins with event
        0, or with the present ``history``.

        A client sends concurrent appends together. If a connection breaks it sends an append with a
        ``writer_id`` or an ``expected_offset`` again; for any other it raises ``OutcomeUnknown``, because a
        repetition could append the data twice.

        Raises:
            SegmentNotFound: There is no such segment.
            SegmentSealed: The segment takes no more appends.
            TooLarge: ``data`` is larger than ``append_bytes_max``; split it.
            BadOffset: ``expected_offset`` is not the segment's length; the error's ``expected`` is.
            OutOfOrder: The append overtook its predecessor; send the events after
                ``last_event_number`` first.
            UnknownWriter: The writer's state was expired.
            HistoryLost: The append follows an event, or bytes, that are lost.
            Throttled: Too much is unflushed; slow down and retry.
            StorageFull: There is no room, on the log's disk or in long-term storage.
            OutcomeUnknown: The append may or may not be applied.
        """
        ...

    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        """Appends several events contiguously, all or nothing, and returns the offset of the first one's
        first byte.

        Takes 1 to 1,048,576 events; together they have at most ``append_bytes_max`` bytes. With ``writer_id``
        they get the numbers from ``first_event_number`` on, and the batch must be entirely new or entirely a
        repetition. ``history`` is that of the numbers and of ``expected_offset``.

        Raises the errors of ``append``.
        """
        ...

    async def append_each(self, appends: Sequence[JoinedAppend]) -> list[int | TierlogError | None]:
        """Makes many appends to many segments at once, those to one segment in order. Returns one outcome per
        append, in order: what ``append`` returns, or the error that it raises. ``tierlog.BatchItem`` is such
        an append.

        An append that is refused does not stop those after it. The data is not copied; it must not change
        until the call returns.

        Raises:
            InvalidArgument: An item is not an append at all; nothing was appended.
        """
        ...

    async def seal_segment(self, name: str) -> int:
        """Makes the segment refuse appends from now on; returns its final length in bytes. A sealed segment
        may be sealed again.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def truncate_segment(self, name: str, offset: int, *, history: int | None = None) -> None:
        """Drops the bytes before ``offset``: they cannot be read any more, and chunks with nothing else in
        them are deleted later. An ``offset`` at or before the segment's start changes nothing. ``history`` is
        that of ``offset``, as in ``read``.

        Raises:
            HistoryLost: ``offset`` is of a history that is lost.
            SegmentNotFound: There is no such segment.
            BadOffset: ``offset`` lies beyond the end of the segment.
        """
        ...

    async def delete_segment(self, name: str) -> None:
        """Deletes the segment. A new segment can be created under its name at once.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """Moves the bytes of sealed ``sources``, in order, to the end of ``target``, all or nothing; returns
        the offset at which the first one begins. The sources are deleted.

        ``attribute_updates`` change the target's attributes in the same step; if one of their conditions does
        not hold, nothing is merged. Sources must be in the target's container: name them after the target,
        with a suffix such as ``app/events#part-1``. A call takes 1 to 65,535 of them.

        Raises:
            SegmentNotFound: The target or a source does not exist.
            SegmentNotSealed: A source is not sealed.
            SegmentSealed: The target is sealed.
            AttributeConflict: The condition of an attribute update does not hold.
            InvalidArgument: A source is in another container, is named twice, or is the target.
        """
        ...

    async def update_attributes(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> dict[AttributeName, int]:
        """Changes attributes of the segment, all or nothing; returns the new values of those in ``updates``,
        which are 1 to 1,024. A segment may have any number of attributes.

        Raises:
            SegmentNotFound: There is no such segment.
            AttributeConflict: The condition of an update does not hold.
        """
        ...

    async def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        """Forgets the event numbers of these writers, at most 65,536; returns how many of the writers were
        known. The next append of a forgotten writer raises ``UnknownWriter``. 1,024 are forgotten in each
        step: after an error some may be.

        Raises:
            SegmentNotFound: There is no such segment.
        """
        ...

    async def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        """Begins a transaction on the segment ``target``, or finds the one that has this id; look at its
        state before you write.

        ``token`` is a writer and an epoch. If that epoch was committed before, by this transaction or
        another, the returned state is COMMITTED and there is nothing to write.

        The transaction is aborted if nothing is staged or appended for ``lease`` seconds (1 second to 30
        days, default one hour). The store's ``transactions.lease_max`` may limit it; the result has the lease
        that was granted.

        Raises:
            SegmentNotFound: There is no such target.
            TransactionEnded: The transaction was committed or aborted before.
            InvalidArgument: The transaction was begun with another token.
        """
        ...

    async def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        """Creates the staged segment ``part`` of an open transaction, or finds it; returns its name, to which
        you append as to any segment.

        Its bytes are invisible in the target until the commit. It cannot be sealed, truncated, merged or
        deleted by name.

        Raises:
            TransactionNotFound: There is no such transaction.
            TransactionEnded: The transaction was committed or aborted.
            InvalidArgument: The transaction has ``transactions.staged_max`` staged segments already.
        """
        ...

    async def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        """Moves ``parts`` to the end of the target, in this order, in one step, and ends the transaction. Its
        other staged segments are dropped.

        Each part must have exactly the ``length`` that is given for it. If the transaction, or the epoch of
        its token, was committed before, nothing changes and ``applied`` is False. Give the token of
        ``begin_transaction`` here too: with it a repetition is recognized even when the transaction itself
        has been forgotten.

        After each of these errors nothing was changed:

        Raises:
            BadOffset: A part has another length.
            SegmentSealed: The target is sealed. The transaction stays open.
            SegmentNotFound: There is no such target, or a part was never staged.
            TransactionNotFound: There is no such transaction.
            TransactionEnded: The transaction was aborted.
        """
        ...

    async def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        """Ends the transaction and drops its staged segments. A committed transaction stays committed, and
        the returned state shows it.

        ``reason`` is text of at most 1,000 characters, kept with the transaction. An unknown transaction is
        recorded as aborted, so that a begin which arrives late finds it ended.

        Raises:
            SegmentNotFound: There is no such target.
        """
        ...

    async def flush(self) -> None:
        """Returns when everything that was acked before the call is in long-term storage.

        Starts a flush cycle in every container and waits for it. Raises the first error that kept a segment
        from being flushed; nothing is lost then, and later cycles try again.
        """
        ...

    async def backup(self, name: str) -> None:
        """Makes a backup of the whole store, with everything that was acked before the call. Flushes, and
        copies nothing: until it is removed, long-term storage keeps what it needs.

        ``name`` has 1 to 100 letters, digits, ``.``, ``_`` and ``-``. ``tierlog restore`` and ``tierlog
        backup --copy-to`` use the backup. Each container is as of one moment; all of them are not.

        Raises:
            BackupExists: There is one of that name, or another call is making it.
            BackupIncomplete: A container was opened by another host meanwhile; make it again.
            InvalidArgument: There is no room for another backup: 64 are kept.
            StorageFull: There is no room for what the backup needs.
            Unavailable: Long-term storage does not answer.
        """
        ...

    async def backups(self) -> list[Backup]:
        """Returns the backups in long-term storage, sorted by name."""
        ...

    async def remove_backup(self, name: str) -> None:
        """Removes a backup. What only it needed is deleted in the background.

        Raises:
            BackupNotFound: There is no such backup.
        """
        ...


def copy_docstrings(source: type) -> Callable[[C], C]:
    """Class decorator: each public method without a docstring gets that of the same name in ``source``."""

    def copy(target: C) -> C:
        methods: Mapping[str, object] = vars(target)
        for name, method in methods.items():
            original = getattr(source, name, None)
            if not name.startswith("_") and callable(method) and not method.__doc__ and original is not None:
                method.__doc__ = original.__doc__
        return target

    return copy
