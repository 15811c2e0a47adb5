"""The checker against histories that are right by construction, and against a plain search through all
orders."""

from __future__ import annotations

import time
from random import Random
from typing import Literal

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.linearize import Checker, Violation
from simulation.model import (
    Outcome,
    Refusal,
    Returned,
    ReturnedBytes,
    ReturnedInfo,
    ReturnedNames,
    ReturnedValues,
    State,
)
from simulation.model_calls import Op
from simulation.view import SegmentView, View, shows, view_for

from support.random_calls import NAMES, WRITERS, random_call
from tierlog import SegmentInfo
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, TierlogError, Unavailable


def given_for(outcome: Outcome, random: Random) -> object:
    """What a store could answer where the model has ``outcome``."""
    match outcome:
        case Returned(value):
            return value
        case ReturnedNames(names):
            return list(names)
        case ReturnedValues(values):
            return dict(values)
        case ReturnedBytes(data):
            return data[: random.randint(1, len(data))] if data else b""
        case ReturnedInfo():
            segment_id = 100 * NAMES.index(outcome.name) + outcome.number
            return SegmentInfo(
                outcome.name,
                segment_id,
                outcome.length,
                outcome.start,
                outcome.sealed,
                dict(outcome.attributes),
                outcome.start,
                0,
            )
        case Refusal():
            return made(outcome)
    raise AssertionError(outcome)


def made(refused: Refusal) -> TierlogError:
    error = refused.kind.__new__(refused.kind, "refused")
    for field, value in refused.fields:
        setattr(error, field, value)
    return error


def view_of(state: State) -> View:
    like = {
        name: SegmentView(
            last_numbers=dict.fromkeys(WRITERS), segment_id=100 * NAMES.index(name) + segment.number
        )
        for name, segment in state.segments
    }
    return view_for(state, like)


@attrs.define(eq=False)
class Call:
    op: Op
    owner: int
    begin: int
    outcome: Outcome | None = None
    """Set when it took effect in the history's own order."""
    fate: str = "open"
    end: int = 1 << 30
    given: object = None


@attrs.define(eq=False)
class Observation:
    view: View
    at: int
    bound: int = -1


START = State().create("f").create("f#1")


class History:
    """Random calls of a family: each takes effect at a moment of its own, and is answered, lost or doubted
    when it pleases."""

    def __init__(self, random: Random, steps: int, clients: int = 4) -> None:
        self.random = random
        self.state = START
        self.calls: list[Call] = []
        self.events: list[tuple[str, Call | Observation]] = []
        self.owner = 0
        self.clients = clients
        for _ in range(steps):
            self._step()

    def _open(self) -> list[Call]:
        return [call for call in self.calls if call.fate == "open"]

    def _event(self, kind: str, what: Call | Observation) -> None:
        self.events.append((kind, what))

    def _step(self) -> None:
        kind = self.random.choices(
            ("begin", "apply", "tell", "doubt", "refuse", "observe", "fence"), (8, 8, 8, 1, 1, 0.4, 0.4)
        )[0]
        if kind == "begin":
            if len(self._open()) == self.clients:
                return
            call = Call(random_call(self.random, len(self.calls)), self.owner, len(self.events))
            self.calls.append(call)
            self._event("begin", call)
        elif kind == "apply":
            able = [
                call
                for call in self.calls
                if call.outcome is None
                and call.owner == self.owner
                and call.fate in {"open", "doubt"}
                and not is_dead(call)
            ]
            for call in self.random.sample(able, min(len(able), 1)):
                self.state, call.outcome = call.op.apply(self.state)
        elif kind in {"observe", "fence"}:
            self.owner += kind == "fence"
            self._event(
                kind,
                Observation(view_of(self.state), len(self.events), self.owner if kind == "fence" else -1),
            )
        else:
            able = [
                call
                for call in self._open()
                if kind == "doubt" or (call.outcome is not None) == (kind == "tell")
            ]
            for call in self.random.sample(able, min(len(able), 1)):
                self._end(call, kind)

    def _end(self, call: Call, kind: str) -> None:
        call.fate, call.end = kind, len(self.events)
        if kind == "tell":
            assert call.outcome is not None
            call.given = given_for(call.outcome, self.random)
        self._event(kind, call)


def is_dead(call: Call) -> bool:
    return call.fate == "doubt" and call.op.is_query


def play(events: list[tuple[str, Call | Observation]], checker: Checker, *, looks: bool = True) -> None:
    pending = {}
    for kind, what in events:
        if isinstance(what, Observation):
            checker.observe(what.view) if kind == "observe" else checker.fence(
                what.bound, what.view if looks else None
            )
        elif kind == "begin":
            pending[what] = checker.begin(what.op, what.owner)
        elif kind == "doubt":
            checker.refused(pending[what], OutcomeUnknown("who knows"))
        elif kind == "refuse":
            checker.refused(pending[what], NotOwner("fenced") if what.owner else Unavailable("not now"))
        elif isinstance(what.given, TierlogError):
            checker.refused(pending[what], what.given)
        else:
            checker.answered(pending[what], what.given)


Item = tuple[int, int, Call | Observation]
Ids = dict[tuple[str, int], int]


def has_order(history: History, *, with_ids: bool) -> bool:
    """A plain search: is there any order of the calls and observations that explains the answers?
    ``with_ids``: one segment id for each segment."""
    fences = [what for kind, what in history.events if isinstance(what, Observation) and kind == "fence"]
    items: list[Item] = []
    for kind, what in history.events:
        if isinstance(what, Observation):
            items.append((2 * what.at, 2 * what.at, what))
        elif kind == "begin" and what.fate != "refuse" and not is_dead(what):
            closed = [2 * fence.at - 1 for fence in fences if what.owner < fence.bound]
            items.append(
                (2 * what.begin, min([2 * what.end if what.fate == "tell" else 1 << 30, *closed]), what)
            )
    return _search(START, items, {} if with_ids else None)


def _search(state: State, items: list[Item], ids: Ids | None) -> bool:
    mandatory = [end for _, end, what in items if _is_answered(what)]
    deadline = min(mandatory, default=-1)
    for item in items if mandatory else []:
        begin, end, what = item
        # What ends before this begins, and need not be, can no longer happen.
        rest = [
            other for other in items if other is not item and (other[1] > begin or _is_answered(other[2]))
        ]
        if begin > deadline or (isinstance(what, Observation) and end != deadline):
            continue

        after, outcome = (state, None) if isinstance(what, Observation) else what.op.apply(state)
        known = _with_ids(state, what, outcome, ids)
        if known is not False and _agrees(state, what, outcome) and _search(after, rest, known):
            return True

    return not mandatory


def _agrees(state: State, what: Call | Observation, outcome: Outcome | None) -> bool:
    if isinstance(what, Observation):
        return shows(state, what.view)

    assert outcome is not None
    return what.fate != "tell" or outcome.accepts(what.given)


def _with_ids(
    state: State, what: Call | Observation, outcome: Outcome | None, ids: Ids | None
) -> Ids | Literal[False] | None:
    """What is known of segment ids after it, or False if it contradicts what was known."""
    if ids is None:
        return None

    shown: list[tuple[str, int, int]] = []
    if isinstance(what, Observation):
        shown = [
            (name, segment.number, what.view[name].segment_id or 0)
            for name, segment in state.segments
            if name in what.view
        ]
    elif what.fate == "tell" and isinstance(outcome, ReturnedInfo) and isinstance(what.given, SegmentInfo):
        shown = [(outcome.name, outcome.number, what.given.segment_id)]
    known = dict(ids)
    fits = all(
        known.setdefault((name, number), segment_id) == segment_id for name, number, segment_id in shown
    )
    return known if fits and len(set(known.values())) == len(known) else False


def _is_answered(what: Call | Observation) -> bool:
    return isinstance(what, Observation) or what.fate == "tell"


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 5))
def test_every_history_that_has_an_order_is_accepted(seed: int, clients: int) -> None:
    history = History(Random(seed), 160, clients)

    play(history.events, Checker("f", state=START))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_history_that_has_an_order_is_accepted_without_observations_at_fences(seed: int) -> None:
    history = History(Random(seed), 100)

    play(history.events, Checker("f", state=START), looks=False)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 40))
def test_what_is_refused_is_exactly_what_a_search_through_all_orders_refuses(seed: int) -> None:
    random = Random(seed)
    history = History(random, 22, 3)
    falsify(history, random)

    try:
        play(history.events, Checker("f", state=START))
    except Violation:
        accepted = False
    else:
        accepted = True

    # An answer that fits several segments of a name teaches the checker nothing about their ids.
    assert has_order(history, with_ids=True) <= accepted <= has_order(history, with_ids=False)


def falsify(history: History, random: Random) -> None:
    """Give one call the answer that it would have had in the state of another moment, or show such a
    state."""
    state = START
    for call in random.sample(history.calls, random.randrange(len(history.calls) + 1)):
        state = call.op.apply(state)[0]
    answered = [call for call in history.calls if call.fate == "tell"]
    looks = [what for _, what in history.events if isinstance(what, Observation)]
    if looks and random.random() < 0.4:
        random.choice(looks).view = view_of(state)
    elif answered:
        call = random.choice(answered)
        call.given = given_for(call.op.apply(state)[1], random)


def test_two_hundred_calls_of_four_clients_are_checked_quickly() -> None:
    history = History(Random("speed"), 900)
    assert len(history.calls) > 190

    best = 1e9
    for _ in range(3):
        began = time.process_time()
        play(history.events, Checker("f", state=START))
        best = min(best, time.process_time() - began)

    assert best < 0.5, f"{best * 1000:.0f} ms"


@pytest.mark.parametrize("seed", range(3))
def test_the_same_events_give_the_same_explanations_in_the_same_order(seed: int) -> None:
    history = History(Random(seed), 150)
    first, second = Checker("f", state=START), Checker("f", state=START)
    play(history.events, first)
    play(history.events, second)

    assert first.states == second.states
