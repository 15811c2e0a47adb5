"""The model's answers, verb by verb. Each script is played to the model and to a real store: both must say
what stands in it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from simulation.model import Outcome, State, refusal
from simulation.model_calls import (
    Append,
    Create,
    Delete,
    ExpireWriters,
    Info,
    LastEventNumber,
    ListNames,
    Merge,
    Op,
    Read,
    Seal,
    Truncate,
    UpdateAttributes,
)
from simulation.view import SegmentView, difference, observe, shows, view_for

from support.container_world import ContainerWorld
from support.random_calls import WRITERS, random_call
from tierlog import AttributeUpdate, AttributeUpdateKind, SegmentStore
from tierlog.storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    TierlogError,
    UnknownWriter,
)

pytestmark = pytest.mark.anyio

Script = list[tuple[Op, Any]]
"""Calls, and what each returns: a value, or a refusal."""

ABC = [(Create("f"), None), (Append("f", (b"abc",)), 0)]
SOURCES = [
    (Create("f#1"), None),
    (Append("f#1", (b"def",)), 0),
    (Create("f#2"), None),
    (Append("f#2", (b"gh",)), 0),
]
SEALED = [*SOURCES, (Seal("f#1"), 3), (Seal("f#2"), 2)]


def written(first: int, *events: bytes, previous: int | None = None, at: int | None = None) -> Append:
    return Append("f", events, "w", first, previous, at)


def update(
    kind: AttributeUpdateKind, value: int, name: str = "a", expected: int | None = None
) -> AttributeUpdate:
    return AttributeUpdate(name, value, kind, expected)


def attributes(*updates: AttributeUpdate) -> UpdateAttributes:
    return UpdateAttributes("f", updates)


NOT_FOUND = refusal(SegmentNotFound, segment="f")
IS_SEALED = refusal(SegmentSealed, segment="f")
CONFLICT = refusal(AttributeConflict, segment="f")
INVALID = refusal(InvalidArgument)
KIND = AttributeUpdateKind
ONE = AttributeUpdate("a", 1)

SCRIPTS: dict[str, Script] = {
    "a name is taken until it is deleted": [
        *ABC,
        (Create("f"), refusal(SegmentExists, segment="f")),
        (Delete("f"), None),
        (Delete("f"), NOT_FOUND),
        (Create("f"), None),
        (Read("f", 0, 9), b""),
    ],
    "nothing is done to a segment that is not there": [
        (op, NOT_FOUND)
        for op in (
            Append("f", (b"x",)),
            written(0, b"x"),
            Seal("f"),
            Truncate("f", 0),
            Delete("f"),
            Merge("f", ("f#1",)),
            attributes(ONE),
            ExpireWriters("f", ("w",)),
            Read("f", 0, 1),
            Info("f"),
            LastEventNumber("f", "w"),
        )
    ],
    "appends follow each other": [
        *ABC,
        (Append("f", (b"d", b"ef")), 3),
        (Append("f", (b"",)), 6),
        (Read("f", 0, 9), b"abcdef"),
    ],
    "a conditional append is applied at its offset only": [
        *ABC,
        (Append("f", (b"x",), expected_offset=2), refusal(BadOffset, segment="f", expected=3, given=2)),
        (Append("f", (b"x",), expected_offset=3), 3),
    ],
    "C3: a repeat is acked with its offset if it is the latest": [
        *ABC,
        (written(5, b"x", b"y"), 3),
        (written(5, b"x", b"y"), 3),
        (written(6, b"y"), None),
        (written(7, b"z"), 5),
        (written(5, b"x", b"y"), None),
        (Read("f", 3, 9), b"xyz"),
    ],
    "C3: a repeat is acked before seal and offset are looked at": [
        *ABC,
        (written(0, b"x"), 3),
        (Seal("f"), 4),
        (written(0, b"x", at=77), 3),
        (written(1, b"y"), IS_SEALED),
    ],
    "C3: a batch is wholly old or wholly new": [
        *ABC,
        (written(0, b"x", b"y"), 3),
        (written(1, b"y", b"z"), INVALID),
    ],
    "C3: an append waits for its predecessor": [
        *ABC,
        (written(0, b"x"), 3),
        (written(2, b"z"), refusal(OutOfOrder, segment="f", last_event_number=0)),
        (written(9, b"z", previous=0), 4),
        (written(12, b"z", previous=8), refusal(OutOfOrder, segment="f", last_event_number=9)),
        (LastEventNumber("f", "w"), 9),
    ],
    "C3: a new writer that names a predecessor is unknown": [
        *ABC,
        (written(4, b"x", previous=3), refusal(UnknownWriter, segment="f")),
        (written(4, b"x", previous=-1), refusal(UnknownWriter, segment="f")),
        (LastEventNumber("f", "w"), None),
    ],
    "C3: an expired writer never starts afresh": [
        *ABC,
        (written(0, b"x"), 3),
        (ExpireWriters("f", ("w", "v", "w")), 1),
        (ExpireWriters("f", ("w",)), 0),
        (written(0, b"x"), refusal(UnknownWriter, segment="f")),
        (written(1, b"x"), refusal(UnknownWriter, segment="f")),
        (LastEventNumber("f", "w"), None),
        (Append("f", (b"x",), "v", 3), 4),
    ],
    "an empty event of a writer counts": [
        *ABC,
        (written(0, b""), 3),
        (written(0, b"z"), 3),
        (LastEventNumber("f", "w"), 0),
    ],
    "sealing twice is fine": [*ABC, (Seal("f"), 3), (Seal("f"), 3), (Append("f", (b"x",)), IS_SEALED)],
    "a truncation moves the start, never back": [
        *ABC,
        (Truncate("f", 4), refusal(BadOffset, segment="f", expected=3, given=4)),
        (Truncate("f", 2), None),
        (Truncate("f", 1), None),
        (Read("f", 1, 9), refusal(SegmentTruncated, segment="f", start_offset=2)),
        (Read("f", 2, 9), b"c"),
        (Seal("f"), 3),
        (Truncate("f", 3), None),
        (Read("f", 3, 9), b""),
        (Read("f", 99, 9), b""),
    ],
    "a merge moves sealed sources to the tail": [
        *ABC,
        *SEALED,
        (Merge("f", ("f#2", "f#1"), (ONE,)), 3),
        (Read("f", 0, 3), b"abc"),
        (Read("f", 3, 2), b"gh"),
        (Read("f", 5, 9), b"def"),
        (ListNames("f"), ["f"]),
        (attributes(update(KIND.ACCUMULATE, 1)), {"a": 2}),
    ],
    "a merge is refused whole": [
        *ABC,
        *SOURCES,
        (Seal("f#1"), 3),
        (Merge("f", ()), INVALID),
        (Merge("f", ("f#1", "f#1")), INVALID),
        (Merge("f", ("f#1", "f")), INVALID),
        (Merge("f", ("f#2", "f#9")), refusal(SegmentNotFound, segment="f#9")),
        (Merge("f", ("f#1", "f#2")), refusal(SegmentNotSealed, segment="f#2")),
        (Merge("f", ("f#1",), (ONE, update(KIND.NONE, 2))), CONFLICT),
        (Truncate("f#1", 1), None),
        (Merge("f", ("f#1",)), INVALID),
        (Seal("f"), 3),
        (Merge("f", ("f#9",)), IS_SEALED),
        (ListNames("f"), ["f", "f#1", "f#2"]),
        (ListNames("f#"), ["f#1", "f#2"]),
    ],
    "the five kinds of attribute updates": [
        *ABC,
        (attributes(update(KIND.NONE, 5)), {"a": 5}),
        (attributes(update(KIND.NONE, 5)), CONFLICT),
        (attributes(update(KIND.REPLACE, 3)), {"a": 3}),
        (attributes(update(KIND.REPLACE_IF_GREATER, 3)), CONFLICT),
        (attributes(update(KIND.REPLACE_IF_GREATER, 4)), {"a": 4}),
        (attributes(update(KIND.REPLACE_IF_GREATER, -1, "b")), {"b": -1}),
        (attributes(update(KIND.ACCUMULATE, 2), update(KIND.ACCUMULATE, 2, "c")), {"a": 6, "c": 2}),
        (attributes(update(KIND.ACCUMULATE, (1 << 63) - 1)), CONFLICT),
        (attributes(update(KIND.REPLACE_IF_EQUALS, 9, expected=5)), CONFLICT),
        (attributes(update(KIND.REPLACE_IF_EQUALS, 9, expected=6)), {"a": 9}),
        (attributes(update(KIND.REPLACE_IF_EQUALS, 1, "d", None)), {"d": 1}),
    ],
    "several updates see each other, and are done all or not at all": [
        *ABC,
        (attributes(update(KIND.REPLACE, 1), update(KIND.ACCUMULATE, 5)), {"a": 6}),
        (attributes(update(KIND.REPLACE, 0), update(KIND.NONE, 9)), CONFLICT),
        (Seal("f"), 3),
        (attributes(update(KIND.REPLACE_IF_EQUALS, 7, expected=6)), {"a": 7}),
    ],
}


def play(script: Script) -> State:
    state = State()
    for op, given in script:
        state, outcome = op.apply(state)
        assert outcome == given if isinstance(given, Outcome) else outcome.accepts(given), (
            f"{op}: {outcome}, not {given!r}"
        )

    return state


async def ask(store: SegmentStore, op: Op) -> object:
    try:
        return await op.send(store)
    except TierlogError as error:
        return error


@pytest.mark.parametrize("name", SCRIPTS)
async def test_model_and_store_give_the_same_answers(name: str) -> None:
    script = SCRIPTS[name]
    state = play(script)

    async with ContainerWorld().owner() as owner:
        for op, given in script:
            answer = await ask(owner.store, op)
            assert given.accepts(answer) if isinstance(given, Outcome) else answer == given, (
                f"{op} returned {answer!r}"
            )
        view = await observe(owner.store, "f", dict.fromkeys(("f", "f#1", "f#2"), WRITERS))

    assert shows(state, view), difference(state, view)


@pytest.mark.parametrize("seed", range(12))
async def test_model_and_store_agree_on_any_calls(seed: int) -> None:
    random, state = Random(seed), State()

    async with ContainerWorld().owner() as owner:
        for number in range(150):
            op = random_call(random, number)
            state, outcome = op.apply(state)
            answer = await ask(owner.store, op)
            assert outcome.accepts(answer), f"{op} returned {answer!r}, not {outcome}"
            if number % 30 == 29:
                await owner.store.flush()
                view = await observe(owner.store, "f", dict.fromkeys(("f", "f#1", "f#2"), WRITERS))
                assert shows(state, view), difference(state, view)


def test_another_class_or_other_fields_are_another_refusal() -> None:
    expected = refusal(BadOffset, segment="f", expected=3, given=2)

    assert expected.accepts(BadOffset("at 3", segment="f", expected=3, given=2))
    assert not expected.accepts(BadOffset("at 3", segment="f", expected=4, given=2))
    assert not expected.accepts(SegmentSealed("sealed", segment="f"))
    assert not expected.accepts(3)


def test_a_read_may_be_short_but_not_empty_below_the_tail() -> None:
    _, outcome = Read("f", 1, 9).apply(play(ABC))

    assert [data for data in (b"bc", b"b", b"", b"bcd", b"c") if outcome.accepts(data)] == [b"bc", b"b"]


def test_a_segment_that_was_created_again_is_another_segment() -> None:
    once, again = (
        play([(Create("f"), None)]),
        play([(Create("f"), None), (Delete("f"), None), (Create("f"), None)]),
    )

    assert once != again
    assert view_for(once, {}) == view_for(again, {})


def test_two_ways_to_the_same_segments_lead_to_one_state() -> None:
    one = play(
        [
            (Create("f#1"), None),
            (Create("f"), None),
            (Append("f", (b"ab", b"c")), 0),
            (attributes(ONE), {"a": 1}),
        ]
    )
    two = play(
        [
            (Create("f"), None),
            (attributes(ONE), {"a": 1}),
            (Append("f", (b"a",)), 0),
            (Create("f#1"), None),
            (Append("f", (b"bc",)), 1),
        ]
    )

    assert (one, hash(one)) == (two, hash(two))


@pytest.mark.parametrize(
    "shown",
    [
        SegmentView(0, b"abc", sealed=True),
        SegmentView(1, b"bc"),
        SegmentView(0, b"abd"),
        SegmentView(0, b"abcd"),
        SegmentView(0, b"abc", attributes={"a": 1}),
        SegmentView(0, b"abc", last_numbers={"w": 0}),
    ],
    ids=repr,
)
def test_a_snapshot_that_differs_anywhere_is_noticed(shown: SegmentView) -> None:
    state = play(ABC)

    assert shows(state, {"f": SegmentView(0, b"abc", last_numbers={"w": None})})
    assert not shows(state, {"f": shown})
    assert difference(state, {"f": shown})
    assert not shows(state, {})
    assert not shows(State(), {"f": SegmentView()})
