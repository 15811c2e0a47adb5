"""States as tables (A7) and exits (A8, A9)."""

from __future__ import annotations

import enum
import itertools

import anyio
import pytest

from tierlog.actors.kernel.lifecycle import (
    CLEAN_EXIT,
    RESTARTABLE,
    ActorExit,
    ExitKind,
    IllegalTransition,
    Lifecycle,
    StateTable,
    Unreachable,
    exit_kind_of,
    exit_of,
    first_leaf,
    leaves,
)
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, Unavailable

pytestmark = pytest.mark.anyio


class Door(enum.Enum):
    SHUT = enum.auto()
    OPEN = enum.auto()
    WALLED = enum.auto()


TABLE = StateTable(Door, {Door.SHUT: {Door.OPEN, Door.WALLED}, Door.OPEN: {Door.SHUT}, Door.WALLED: ()})


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Door, Door)))
def test_every_step_follows_the_table_or_is_loud(old: Door, new: Door) -> None:
    door = Lifecycle(TABLE, old)
    if new in TABLE.transitions[old]:
        door.go(new, "because")
        assert (door.state, door.reason) == (new, "because")
    else:
        with pytest.raises(IllegalTransition, match=f"{old.name} -> {new.name}"):
            door.go(new)
        assert door.state is old


def test_a_table_names_every_state() -> None:
    with pytest.raises(ValueError, match="OPEN, WALLED"):
        StateTable(Door, {Door.SHUT: ()})


def test_reachable_states() -> None:
    assert TABLE.reachable(Door.SHUT) == set(Door)
    assert TABLE.reachable(Door.WALLED) == {Door.WALLED}


def test_a_step_is_reported_and_counted() -> None:
    steps: list[tuple[Door, Door, object]] = []
    door = Lifecycle(TABLE, Door.SHUT, on_step=lambda *step: steps.append(step))
    door.go(Door.OPEN, "a guest")
    assert steps == [(Door.SHUT, Door.OPEN, "a guest")]
    assert repr(door) == "<Lifecycle OPEN because 'a guest'>"
    assert (door.statistics().state, door.statistics().reason, door.statistics().steps) == (
        "OPEN",
        "a guest",
        1,
    )


async def test_wait_for_sees_a_state_that_was_left_at_once() -> None:
    door = Lifecycle(TABLE, Door.SHUT)
    seen: list[Door] = []

    async def wait() -> None:
        seen.append(await door.wait_for(Door.OPEN))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        door.go(Door.OPEN)
        door.go(Door.SHUT)
        door.go(Door.WALLED)

    assert seen == [Door.OPEN]
    assert await door.wait_for(Door.WALLED, Door.OPEN) is Door.WALLED


async def test_wait_for_what_cannot_come_any_more_raises_with_the_reason() -> None:
    door = Lifecycle(TABLE, Door.SHUT)

    async def wait() -> None:
        with pytest.raises(Unreachable, match=r"OPEN cannot follow WALLED because 'masons'"):
            await door.wait_for(Door.OPEN)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        door.go(Door.WALLED, "masons")
    await wait()


async def test_a_cancelled_wait_leaves_no_trace() -> None:
    door = Lifecycle(TABLE, Door.SHUT)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(door.wait_for, Door.OPEN)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert not door._watchers


def test_the_restart_table_names_every_exit() -> None:
    assert {kind for kind in ExitKind if RESTARTABLE[kind]} == {ExitKind.FAILED, ExitKind.POISONED}
    assert set(RESTARTABLE) == set(ExitKind)


def test_an_actor_that_was_fenced_is_never_restarted() -> None:
    assert not RESTARTABLE[exit_kind_of(ExceptionGroup("tasks", [NotOwner("epoch 8")]))]


def test_an_actor_that_found_corrupt_data_is_never_restarted() -> None:
    assert not RESTARTABLE[exit_kind_of(DataCorruption("bits", file="wal-1", offset=4096))]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit(1)], ids=repr)
def test_what_can_strike_inside_a_sync_step_means_poisoned(error: BaseException) -> None:
    """Rule C5: memory cannot be trusted after it."""
    assert (
        exit_kind_of(ExceptionGroup("tasks", [error]) if isinstance(error, Exception) else error)
        is ExitKind.POISONED
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotOwner("fenced"), ExitKind.FENCED),
        (DataCorruption("bits"), ExitKind.CORRUPT),
        (Unavailable("down"), ExitKind.FAILED),
        (KeyError("bug"), ExitKind.FAILED),
        (MemoryError(), ExitKind.POISONED),
        (KeyboardInterrupt(), ExitKind.POISONED),
        (BaseExceptionGroup("both", [KeyError("bug"), KeyboardInterrupt()]), ExitKind.POISONED),
        (
            ExceptionGroup(
                "nested", [KeyError("bug"), ExceptionGroup("inner", [DataCorruption("bits"), NotOwner("f")])]
            ),
            ExitKind.CORRUPT,
        ),
    ],
    ids=repr,
)
def test_an_exception_stands_for_an_exit(error: BaseException, kind: ExitKind) -> None:
    assert exit_kind_of(error) is kind
    assert exit_of(error, "why") == ActorExit(kind, error, "why")


def test_an_exit_reads_well() -> None:
    assert str(CLEAN_EXIT) == "clean"
    assert (
        str(ActorExit(ExitKind.FAILED, Unavailable("down"), "flush")) == "failed: flush: Unavailable('down')"
    )


def test_the_leaves_of_a_group_come_in_order_however_deep_they_are() -> None:
    bug, down, stop = KeyError("bug"), Unavailable("down"), KeyboardInterrupt()
    group = BaseExceptionGroup("tasks", [ExceptionGroup("inner", [bug, down]), stop])
    assert list(leaves(group)) == [bug, down, stop]
    assert first_leaf(group) is bug
    assert first_leaf(down) is down
    assert first_leaf(None) is None
