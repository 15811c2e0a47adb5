"""How actors end: rules A8 and A9."""

from __future__ import annotations

import pytest

from tierlog.actors.kernel.exits import (
    CLEAN_EXIT,
    RESTARTABLE,
    ActorExit,
    ExitKind,
    exit_kind_of,
    exit_of,
    first_leaf,
    leaves,
)
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, Unavailable


def test_the_restart_table_names_every_exit() -> None:
    assert {kind for kind in ExitKind if RESTARTABLE[kind]} == {ExitKind.FAILED, ExitKind.POISONED}
    assert set(RESTARTABLE) == set(ExitKind)


def test_an_actor_that_was_fenced_is_never_restarted() -> None:
    assert not RESTARTABLE[exit_kind_of(ExceptionGroup("tasks", [NotOwner("epoch 8")]))]


def test_an_actor_that_found_corrupt_data_is_never_restarted() -> None:
    assert not RESTARTABLE[exit_kind_of(DataCorruption("bits", file="wal-1", offset=4096))]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit(1)], ids=repr)
def test_exceptions_inside_a_sync_step_mean_poisoned(error: BaseException) -> None:
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
    assert str(ActorExit(ExitKind.FAILED, Unavailable("down"), "flush")) == "failed: flush: Unavailable: down"
    assert str(ActorExit(ExitKind.FAILED, AssertionError())) == "failed: AssertionError"
    nested = ExceptionGroup("tasks", [ExceptionGroup("inner", [NotOwner("another owner has it")])])
    assert str(ActorExit(ExitKind.FENCED, nested)) == "fenced: NotOwner: another owner has it"


def test_the_leaves_of_a_group_come_in_order_however_deep_they_are() -> None:
    bug, down, stop = KeyError("bug"), Unavailable("down"), KeyboardInterrupt()
    group = BaseExceptionGroup("tasks", [ExceptionGroup("inner", [bug, down]), stop])
    assert list(leaves(group)) == [bug, down, stop]
    assert first_leaf(group) is bug
    assert first_leaf(down) is down
    assert first_leaf(None) is None
