"""Bugs in the segment container: what is answered, in which order, and what an answer rests on.

Left out on purpose: two clients' creations and truncations that are seen a moment before they are durable
need a crash in that very moment; bugs behind a torn sync step (rule C5) need an exception that no simulated
fault raises.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_PIPELINE = "actors/container/pipeline.py"
_DECISIONS = "actors/container/decisions.py"
_STATE = "actors/container/state.py"
_PUBLISH = "actors/container/publish.py"
_CONTAINER = "actors/container/container.py"
_SEGMENTS = "actors/container/segments.py"
_HOST = "actors/container/local.py"
_READER = "actors/read/reader.py"
_APPEND = "            number = await "

CONTAINER: tuple[Mutant, ...] = (
    mutant(
        "answers-before-the-log",
        "an append is acked before it is handed to the log",
        "C1",
        _PIPELINE,
        _APPEND,
        f"            group.answer(self._log.next_group)\n{_APPEND}",
    ),
    Mutant(
        "readable-before-durable",
        "a reader is given bytes that a crash takes back",
        "C1",
        (
            Edit(
                _PIPELINE,
                _APPEND,
                f"            self._publisher.publish(group.operations, self._log.next_group)\n{_APPEND}",
            ),
            Edit(_PIPELINE, "            self._publisher.publish(group.operations, number)\n", ""),
        ),
    ),
    mutant(
        "refusals-before-durable",
        "a refusal that rests on an operation which never becomes durable was a lie",
        "C1, hole 12",
        _PIPELINE,
        "group.errors.append((request.reply, error))",
        "request.reply.fail(error)",
    ),
    mutant(
        "looks-before-durable",
        "a retry is told 'duplicate, done' while the original is not durable, and never becomes it",
        "C1, hole 12",
        _PIPELINE,
        "group.looks.append((request.reply, answer))",
        "request.reply.resolve(answer)",
    ),
    mutant(
        "zombie-answers-questions",
        "an owner that was succeeded answers info and duplicate checks from its old state",
        "hole 16",
        _PIPELINE,
        "            self._log.check_owner()\n",
        "",
    ),
    mutant(
        "zombie-answers-reads",
        "an owner that was succeeded tells a reader that there is nothing more",
        "hole 16",
        _CONTAINER,
        "        self.log.check_owner()\n        return found\n",
        "        return found\n",
    ),
    mutant(
        "refusals-of-a-zombie-unchecked",
        "an owner that was succeeded calls the store damaged, because a chunk that it still knows was "
        "collected",
        "hole 16",
        _CONTAINER,
        "        except TierlogError:\n            self.log.check_owner()\n            raise\n",
        "        except TierlogError:\n            raise\n",
    ),
    mutant(
        "a-successor-is-a-stranger",
        "an owner whose successor came while it claimed long-term storage late says that its folder is a "
        "copy",
        "W8",
        "actors/container/claims.py",
        "        check_owner()\n        raise\n",
        "        raise\n",
    ),
    mutant(
        "a-segment-is-shown-before-it-is-durable",
        "a read is told that it is at the tail of a segment whose import is not durable yet",
        "C1",
        _CONTAINER,
        "        while segment is None or segment.durable_length < 0:\n",
        "        if segment is None or segment.durable_length < 0:\n",
    ),
    mutant(
        "a-read-looks-again-only-once",
        "a read is refused as damage, because its segment was flushed and spliced twice while it ran",
        "F3",
        _READER,
        "                if seen == before:\n",
        "                if before is not None:\n",
    ),
    mutant(
        "a-read-goes-on-with-an-evicted-segment",
        "a read of a segment that was evicted and then deleted is refused as damage",
        "C9",
        _READER,
        "                segment = self._as_it_is_now(segment)\n",
        "",
    ),
    mutant(
        "a-truncated-read-is-told-in-ids",
        "a read that met a truncation in long-term storage is refused with the number of a segment instead "
        "of its name",
        "C2",
        _READER,
        "except (DataCorruption, SegmentNotFound, SegmentTruncated) as error:",
        "except (DataCorruption, SegmentNotFound) as error:",
    ),
    mutant(
        "in-flight-group-unanswered",
        "callers whose group was being written when the log failed wait for ever",
        "A5",
        _PIPELINE,
        "for group in (self._in_flight, self._building):",
        "for group in (self._building,):",
    ),
    mutant(
        "queued-requests-unanswered",
        "callers whose requests were in the mailbox when the container stopped wait for ever",
        "A4",
        _CONTAINER,
        "        self._fail_requests(self.mailbox.close(error))\n",
        "        self.mailbox.close(error)\n",
    ),
    mutant(
        "waiters-not-woken-at-the-end",
        "a tail of a container that failed waits for ever, though the next owner has more bytes",
        "A5",
        _CONTAINER,
        "        for segment in self.state.segments.by_id.values():\n            segment.wake()\n",
        "",
    ),
    mutant(
        "waiters-not-woken-at-seal",
        "a tail of a segment that is sealed never ends",
        "C1",
        _PUBLISH,
        "            SealSegment: self._wake,\n",
        "",
    ),
    mutant(
        "waiters-not-woken-at-delete",
        "a tail of a segment that is deleted waits for ever",
        "C1",
        _PUBLISH,
        "        segment.marks.clear()\n        segment.wake()\n",
        "        segment.marks.clear()\n",
    ),
    mutant(
        "waiters-not-woken-at-merge",
        "a tail does not notice bytes that came by a merge",
        "C1",
        _PUBLISH,
        "        target.wake()\n",
        "",
    ),
    mutant(
        "throttling-inside-the-drain",
        "the pipeline waits for memory that only a flush frees, whose commit waits behind it in the same "
        "mailbox",
        "C6, hole 17",
        _PIPELINE,
        "            self.step(batch)\n",
        "            while self._publisher._cache.pinned_bytes > 2 * self._publisher._due_bytes:\n"
        "                await anyio.sleep(1.0)\n"
        "            self.step(batch)\n",
    ),
    mutant(
        "unknown-outcome-is-retried",
        "an append whose outcome is unknown is sent to the next owner as well and is there twice",
        "hole 13",
        _HOST,
        "            except (Unavailable, ClosedError):\n",
        "            except TierlogError:\n",
    ),
    mutant(
        "repeat-check-skipped",
        "a retry of an acked event is applied a second time",
        "C3",
        _DECISIONS,
        "elif _is_repeat(segment, request, known):",
        "elif _last_event(request) < known.last_event and _is_repeat(segment, request, known):",
    ),
    mutant(
        "repeat-check-skipped-for-batches",
        "a retry of an acked batch is applied a second time",
        "C3",
        _DECISIONS,
        "elif _is_repeat(segment, request, known):",
        "elif request.event_count == 1 and _is_repeat(segment, request, known):",
    ),
    mutant(
        "gap-in-event-numbers-is-applied",
        "an event that overtook its predecessor is applied; the predecessor is then acked as a duplicate "
        "and is gone",
        "C3, hole 1",
        _DECISIONS,
        "    if previous != last:\n",
        "    if previous < last:\n",
    ),
    mutant(
        "batch-remembers-its-first-number",
        "after a batch its writer counts as having sent one event, and the rest is applied again on a retry",
        "C3",
        _STATE,
        "op.first_event + op.event_count - 1, op.offset)",
        "op.first_event, op.offset)",
    ),
    mutant(
        "repeat-of-a-sealed-segment-is-refused",
        "a retry of an acked append is refused because the segment was sealed since, and its writer writes "
        "it elsewhere again",
        "C3",
        _DECISIONS,
        "    if request.writer:\n        known =",
        '    if segment.sealed:\n        raise SegmentSealed("sealed", segment=segment.name)\n\n    if '
        "request.writer:\n        known =",
    ),
    mutant(
        "expected-offset-zero-means-none",
        "an append that must be the first one is applied anywhere",
        "C1",
        _DECISIONS,
        "if request.expected_offset is not None and",
        "if request.expected_offset and",
    ),
    mutant(
        "segment-keyed-by-name",
        "a segment that is created again under its old name shares an id with the deleted one",
        "C2, hole 2",
        _DECISIONS,
        "CreateSegment(state.next_segment_id(), ",
        'CreateSegment(1 << 32 | __import__("zlib").crc32(request.name.encode()), ',
    ),
    mutant(
        "segment-id-without-epoch",
        "two owners give the same id to different segments",
        "C2",
        _STATE,
        "segment_id(self.epoch, self._created + 1)",
        "segment_id(1, self._created + 1)",
    ),
    mutant(
        "merged-source-keeps-its-name",
        "a source of a merge is still there under its name, and can be merged or deleted once more",
        "hole 22",
        _STATE,
        "self._unname(source, SegmentStatus.MERGED if length else SegmentStatus.DELETED)",
        "source.status = SegmentStatus.MERGED if length else SegmentStatus.DELETED",
    ),
    mutant(
        "merge-loses-attributes",
        "the attributes that guard a commit are not set by it, and it is made a second time",
        "hole 22",
        _STATE,
        "        target.attributes.update(op.values)\n",
        "",
    ),
    mutant(
        "merge-of-a-truncated-source",
        "a source that was truncated is merged as if it were whole",
        "hole 22",
        _DECISIONS,
        "    if source.start_offset:\n",
        "    if source.start_offset > source.length:\n",
    ),
    mutant(
        "merge-one-source-at-a-time",
        "a merge with a source that cannot be merged has already taken the ones before it",
        "hole 22",
        _DECISIONS,
        "        _check_source(target, source)\n",
        "        _check_source(target, source)\n        state.segments.unname(source, "
        "SegmentStatus.MERGED)\n",
    ),
    mutant(
        "attributes-change-before-all-conditions-hold",
        "an update that is refused has changed some of its attributes",
        "C1",
        _DECISIONS,
        "        values[update.name] = _resolve(segment, update, current)\n",
        "        values[update.name] = segment.attributes[update.name] = _resolve(segment, update, "
        "current)\n",
    ),
    mutant(
        "replace-if-greater-takes-equal",
        "two writers of the same epoch both believe to have won",
        "C1",
        _DECISIONS,
        "current is None or update.value > current,",
        "current is None or update.value >= current,",
    ),
    mutant(
        "replace-if-equals-takes-absent",
        "a compare-and-set succeeds on an attribute that is not there",
        "C1",
        _DECISIONS,
        "AttributeUpdateKind.REPLACE_IF_EQUALS: current == update.expected,",
        "AttributeUpdateKind.REPLACE_IF_EQUALS: current is None or current == update.expected,",
    ),
    mutant(
        "attribute-kinds-swapped",
        "an attribute that may only be made once is overwritten",
        "C1",
        _DECISIONS,
        "AttributeUpdateKind.NONE: current is None,",
        "AttributeUpdateKind.NONE: True,",
    ),
    mutant(
        "evicts-unflushed-segments",
        "a segment is evicted with bytes that only the log holds, and they cannot be read any more",
        "C9",
        _SEGMENTS,
        " and self.waiter is None and self.is_flushed\n",
        " and self.waiter is None\n",
    ),
    mutant(
        "evicts-segments-with-waiters",
        "a tail of a segment that is evicted never hears of new bytes",
        "C9",
        _SEGMENTS,
        " and self.waiter is None and self.is_flushed\n",
        " and self.is_flushed\n",
    ),
    mutant(
        "evicted-segment-forgets-its-flush-position",
        "a segment that comes back seems to have nothing in long-term storage",
        "C9",
        _PUBLISH,
        "        self._state.load_record(segment)\n",
        "",
    ),
)
