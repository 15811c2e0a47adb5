"""A group: all of its requests are answered at once, each in its own way."""

from __future__ import annotations

from typing import Any

import pytest

from tierlog.actors.container.pending_group import Group
from tierlog.actors.kernel.reply import Reply
from tierlog.journal.operations.barrier import Barrier
from tierlog.storage_backends.base.errors import BadOffset, OutcomeUnknown, SegmentNotFound, Unavailable

pytestmark = pytest.mark.anyio


def full_group() -> tuple[Group, dict[str, Reply[Any]]]:
    group = Group(7)
    replies: dict[str, Reply[Any]] = {name: Reply() for name in ("answer", "read", "group", "error")}
    group.add(Barrier())
    group.replies.append(replies["answer"])
    group.values.append(42)
    group.reads.append((replies["read"], 43))
    group.group_answers.append((replies["group"], "extra"))
    group.errors.append((replies["error"], SegmentNotFound("no such")))
    return group, replies


async def test_a_durable_group_answers_every_request() -> None:
    """C1: refusals and reads wait for the group as appends do."""
    group, replies = full_group()
    assert not any(reply.done for reply in replies.values())
    group.answer(5)

    assert await replies["answer"].wait() == 42
    assert await replies["read"].wait() == 43
    assert await replies["group"].wait() == (5, "extra")
    with pytest.raises(SegmentNotFound):
        await replies["error"].wait()


async def test_a_failed_group_fails_changes_as_unknown_and_queries_as_unavailable() -> None:
    """C1: a refusal that was decided on state that is not durable is not returned."""
    group, replies = full_group()
    group.fail(OutcomeUnknown("?"), Unavailable("again"))
    for name, error in {
        "answer": OutcomeUnknown,
        "group": OutcomeUnknown,
        "read": Unavailable,
        "error": Unavailable,
    }.items():
        with pytest.raises(error):
            await replies[name].wait()


@pytest.mark.parametrize("part", ["operations", "replies", "reads", "group_answers", "errors"])
def test_a_group_with_anything_in_it_is_not_empty(part: str) -> None:
    group = Group(1)
    assert group.is_empty
    getattr(group, part).append((Reply(), BadOffset("x", expected=1, given=2)))

    assert not group.is_empty
