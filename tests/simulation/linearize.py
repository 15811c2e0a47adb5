"""The checker: is there an order of a family's calls, in agreement with real time, in which the model gives
every answer that was given?

``Checker`` is notified of every call's beginning and end, of new owners and of full observations, and raises
``Violation`` at the first event that no order explains. It keeps every possible configuration and extends
them lazily: pending calls are ordered only when a call returns, and only in sequences that end with that
call, of calls that it depends on.

* A call that was *answered* took effect between its beginning and its answer.
* A call that was *refused* for a reason in the state was refused at such a moment; one refused because
  nothing could be done (``NOTHING_DONE``) never takes effect; one with ``OutcomeUnknown`` is in doubt.
* A call *in doubt* or *lost* takes effect once, at any later moment, or never.
* A *fence*: a newer owner has recovered. Calls to earlier owners took effect before, or never will. Their
  answers may come later, and must be what was true before the fence. The newer owner has answered nothing yet
  when the fence is reported.
* An observation (``fence``, ``observe``) shows the whole family at one moment. No call may take effect
  between its first read and the moment it is reported. Pending and doubtful calls are in it or not, each
  whole.

Synchronous; after a ``Violation`` the checker cannot be used.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable

import attrs

from tierlog.storage_backends.base.errors import (
    ClosedError,
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    Throttled,
    TierlogError,
    Unavailable,
)

from .configuration import (
    Configuration,
    Pending,
    TooManyConfigurations,
    Walk,
    connected,
    distinct,
    spontaneous_for,
)
from .model import Outcome, State, brief
from .model_calls import Append, ExpireWriters, LastEventNumber, Op
from .view import View, can_lead_to, difference, shows

NOTHING_DONE = (Unavailable, Throttled, StorageFull, ClosedError, NotOwner)
"""Refusals that promise that the call was not applied and will not be, whatever the state."""
RECENT = 20
NEAREST = 5
VISITS = 5
"""How many configurations may be visited at one event, for each one that may be kept."""
OTHER_ID = "all is the same but a segment id: it was another one before, or it is another segment's"


class Violation(AssertionError):
    """No order of the calls explains the answers or the observation."""


class Checker:
    """Checks one family. ``limit`` bounds the configurations kept; ``TooManyConfigurations`` says that it was
    reached."""

    def __init__(self, family: str, *, state: State | None = None, limit: int = 4000) -> None:
        self.family = family
        self._limit = limit
        self._visits = VISITS * limit
        self._configurations = [Configuration(state or State())]
        self._pending: dict[int, Pending] = {}
        self._begun = 0
        self._bound = 0
        """Owners below it are fenced."""
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._writers: dict[str, dict[str, None]] = {}

    # --- what is known ---------------------------------------------------------------------------

    @property
    def states(self) -> list[State]:
        """The states that the family may be in, without pending calls."""
        return list(dict.fromkeys(configuration.state for configuration in self._configurations))

    @property
    def pending(self) -> list[Pending]:
        return list(self._pending.values())

    @property
    def writers(self) -> dict[str, tuple[str, ...]]:
        """The writers that a full observation should include, by segment: every writer that a call named."""
        return {name: tuple(writers) for name, writers in self._writers.items()}

    @property
    def bound(self) -> int:
        """The first owner that is not fenced."""
        return self._bound

    @property
    def unspent(self) -> list[Pending]:
        """Pending calls that took effect in no explanation so far."""
        spent = {number for configuration in self._configurations for number in configuration.spent}
        return [call for call in self._pending.values() if call.number not in spent]

    @property
    def explanations(self) -> Hashable:
        """Equal for two checkers of a family only if both accept the same from now on."""
        pending = ((call.number, call.op, call.is_open, call.is_fenced) for call in self._pending.values())
        return tuple(self._configurations), tuple(pending)

    def after_crash(self) -> Checker:
        """A copy for a world in which all processes die now: every open call is lost."""
        twin = copy.copy(self)
        twin._pending = {number: attrs.evolve(call) for number, call in self._pending.items()}
        twin._recent = self._recent.copy()
        twin._writers = {name: dict(writers) for name, writers in self._writers.items()}
        for call in twin.pending:
            if call.is_open:
                twin.lost(call)
        return twin

    # --- calls -----------------------------------------------------------------------------------

    def is_fenced(self, owner: int) -> bool:
        """Whether a newer owner has recovered."""
        return owner < self._bound

    def begin(self, op: Op, owner: int = 0) -> Pending:
        """A call is invoked; ``owner`` is whom it was sent to: a later owner has a higher number."""
        self._begun += 1
        call = Pending(self._begun, op, owner, is_fenced=self.is_fenced(owner))
        self._note(f"{call}")
        self._note_writers(op)
        self._pending[call.number] = call
        if not call.is_fenced:
            self._configurations = [configuration.noting([call]) for configuration in self._configurations]
        return call

    def answered(self, call: Pending, value: object) -> None:
        """The call returned ``value``."""
        self._explain(call, value)

    def refused(self, call: Pending, error: TierlogError, *, corruption_expected: bool = False) -> None:
        """The call raised ``error``. ``corruption_expected``: stored bytes were damaged, so a query may be
        refused as ``DataCorruption``."""
        if isinstance(error, OutcomeUnknown):
            self.doubtful(call)
        elif isinstance(error, NOTHING_DONE) or (corruption_expected and isinstance(error, DataCorruption)):
            self._never_applied(call, error)
        else:
            self._explain(call, error)

    def doubtful(self, call: Pending) -> None:
        """Its caller gets no answer: ``OutcomeUnknown``, or the caller was cancelled."""
        self._note(f"#{call.number} is in doubt")
        self._lose(call)

    def lost(self, call: Pending) -> None:
        """The process that it was sent to, or its caller, died with the call open."""
        self._note(f"#{call.number} is lost")
        self._lose(call)

    def possible(self, op: Op, owner: int) -> None:
        """Something that ``owner`` may do by itself: once, now or at any later moment, or never."""
        self._lose(self.begin(op, owner))

    # --- the whole family ------------------------------------------------------------------------

    def fence(self, bound: int, view: View | None = None) -> None:
        """A newer owner has recovered and shows ``view``: calls to owners below ``bound`` are in it, or they
        never take effect.

        Without a view every order of the earlier calls stays possible until later answers decide: dearer, but
        nobody needs to stand still.
        """
        if view is None:
            self._settle(bound)
        else:
            self._match(f"fence below owner {bound}", view, is_last=True)
        self._bound = max(self._bound, bound)
        for call in self.pending:
            if call.owner < bound:
                self._fence(call)
        self._keep(self._configurations)

    def observe(self, view: View) -> None:
        """The family shows ``view`` now."""
        self._match("observation", view, is_last=False)

    # --- inside ----------------------------------------------------------------------------------

    def _note(self, line: str) -> None:
        self._recent.append(line)

    def _note_writers(self, op: Op) -> None:
        named: tuple[str, ...] = ()
        if isinstance(op, ExpireWriters):
            named = op.writers
        elif isinstance(op, (Append, LastEventNumber)) and op.writer:
            named = (op.writer,)
        if named:
            self._writers.setdefault(op.name, {}).update(dict.fromkeys(named))

    def _keep(self, configurations: Iterable[Configuration]) -> None:
        kept = distinct(configurations)
        if len(kept) > self._limit:
            raise TooManyConfigurations(
                f"family {self.family}: more than {self._limit} explanations are possible\n{self._report()}"
            )

        self._configurations = kept
        for call in self.pending:
            if not call.is_open and all(call.number in configuration.spent for configuration in kept):
                self._drop(call)  # it took effect in every explanation

    def _drop(self, call: Pending) -> None:
        del self._pending[call.number]
        self._configurations = [configuration.without(call) for configuration in self._configurations]

    def _watching(self) -> list[Pending]:
        return [call for call in self._pending.values() if call.is_open and not call.is_fenced]

    def _lose(self, call: Pending) -> None:
        call.is_open = False
        if call.op.is_query or call.is_fenced:
            self._drop(call)
            self._keep(self._configurations)
        else:
            self._keep(configuration.doubting(call) for configuration in self._configurations)

    def _fence(self, call: Pending) -> None:
        call.is_fenced = True
        if not call.is_open:
            self._drop(call)

    def _never_applied(self, call: Pending, error: TierlogError) -> None:
        self._note(f"#{call.number} was refused: {type(error).__name__}")
        kept = [
            configuration for configuration in self._configurations if not configuration.has_applied(call)
        ]
        if not kept:
            self._fail(
                f"{call}\nwas refused with {error!r}, which promises that nothing was done, but its effect "
                f"was seen"
            )

        del self._pending[call.number]
        self._keep(configuration.without(call) for configuration in kept)

    def _explain(self, call: Pending, given: object) -> None:
        self._note(f"#{call.number} returned {_text(given)}")
        step = _Explanation(call, given, self._pending.values(), self._watching(), self._visits)
        self._bounded(step.explain)
        if not step.found:
            expected = "\n".join(f"  {line}" for line in self._expected(call))
            self._fail(f"{call}\nreturned {_text(given)}, which nothing explains. Possible were:\n{expected}")

        del self._pending[call.number]
        self._keep(step.found)

    def _settle(self, bound: int) -> None:
        self._note(f"fence below owner {bound}, unseen")
        earlier = self._able([call for call in self._pending.values() if call.owner < bound])
        walk = Walk(earlier, self._watching(), self._visits)
        found: list[Configuration] = []

        def visit(here: Configuration, flag: bool) -> tuple[bool, bool]:
            found.append(here)
            return True, flag

        self._bounded(lambda configuration: walk.from_(configuration, visit))
        self._configurations = found

    def _match(self, what: str, view: View, *, is_last: bool) -> None:
        lengths = [f"{name} [{shown.start}, {shown.length})" for name, shown in sorted(view.items())]
        self._note(f"{what}: {', '.join(lengths)}")
        walk = Walk(self._able(list(self._pending.values())), self._watching(), self._visits)
        self._configurations = [
            self._after_expiries(configuration, view) for configuration in self._configurations
        ]
        found: list[Configuration] = []

        def visit(here: Configuration, flag: bool) -> tuple[bool, bool]:
            fitting = _with_ids(here, view) if shows(here.state, view) else None
            if fitting is not None:
                found.append(fitting)
            # After a fence, earlier calls have no other chance: unobserved parts may have changed too.
            return (is_last or fitting is None) and can_lead_to(here.state, view, walk.removable), flag

        self._bounded(lambda configuration: walk.from_(configuration, visit))
        if not found:
            self._fail(f"the {what} shows what nothing explains\n{self._nearest(view)}")

        self._keep(found)

    def _able(self, calls: list[Pending]) -> list[Pending]:
        """Those of ``calls`` that may have their effect now, whatever is observed: of expiries only those
        that others would notice."""
        asked = [call for call in calls if not call.op.is_spontaneous]
        return asked + spontaneous_for(asked, calls)

    def _after_expiries(self, configuration: Configuration, view: View) -> Configuration:
        """After the expiries that must have been: what they alone can have ended is not in ``view``."""
        able = self._able(list(self._pending.values()))
        for call in self._pending.values():
            is_free = call.op.is_spontaneous and call not in able and not configuration.has_applied(call)
            if is_free and any(
                name not in view and configuration.state.find(name) is not None for name in call.op.removes
            ):
                state, outcome = call.op.apply(configuration.state)
                configuration = (
                    configuration
                    if state == configuration.state
                    else configuration.applying(call, state, outcome)
                )
        return configuration

    def _bounded(self, run: Callable[[Configuration], None]) -> None:
        try:
            for configuration in self._configurations:
                run(configuration)
        except TooManyConfigurations as error:
            raise TooManyConfigurations(f"family {self.family}: {error}\n{self._report()}") from None

    # --- reports ---------------------------------------------------------------------------------

    def _expected(self, call: Pending) -> list[str]:
        lines: dict[str, None] = {}
        for configuration in self._configurations[:NEAREST]:
            applied = configuration.outcome_of(call)
            if applied is not None:
                lines[f"{applied} (its effect was seen)"] = None
            elif call.is_fenced:
                lines["nothing new: a newer owner has recovered"] = None
            else:
                lines[str(call.op.apply(configuration.state)[1])] = None
            lines.update(
                dict.fromkeys(sorted(f"{outcome} (earlier)" for outcome in configuration.seen_by(call)))
            )
        return list(lines)

    def _nearest(self, view: View) -> str:
        differences = sorted((difference(state, view) for state in self.states), key=len)[:NEAREST]
        lines = [f"  without pending calls: {'; '.join(found) or OTHER_ID}" for found in differences]
        return "\n".join(lines)

    def _report(self) -> str:
        pending = [f"  {call}" for call in self.pending] or ["  none"]
        recent = [f"  {line}" for line in self._recent]
        return "\n".join(["pending calls:", *pending, f"the last events of family {self.family}:", *recent])

    def _fail(self, text: str) -> None:
        raise Violation(f"family {self.family}: {text}\n{self._report()}")


class _Explanation:
    """The search for configurations in which a call returned ``given``."""

    def __init__(
        self, call: Pending, given: object, pending: Iterable[Pending], watching: list[Pending], limit: int
    ) -> None:
        self._call = call
        self._given = given
        others = [other for other in pending if other is not call]
        self._walk = Walk(connected(call, others), [other for other in watching if other is not call], limit)
        self._has_no_effect = call.op.is_query or isinstance(given, TierlogError)
        self.found: list[Configuration] = []

    def explain(self, start: Configuration) -> None:
        applied = start.outcome_of(self._call)
        if applied is not None:
            if applied.accepts(self._given):
                self._add(start, [applied])
            return

        outcomes = [outcome for outcome in start.seen_by(self._call) if outcome.accepts(self._given)]
        explained = self._add(start, outcomes)
        if not self._call.is_fenced and not (explained and self._has_no_effect):
            self._walk.from_(start, self._visit, flag=explained)

    def _visit(self, here: Configuration, flag: bool) -> tuple[bool, bool]:
        """``flag``: without effect it is explained already, so nothing more of that kind is searched for."""
        state, outcome = self._call.op.apply(here.state)
        if outcome.accepts(self._given):
            if state != here.state:
                self._add(self._walk.note(here.applying(self._call, state, outcome)), [outcome])
            elif not flag:
                flag = self._add(here, [outcome])
                if flag and self._has_no_effect:
                    return False, flag

        return not self._is_impossible(here), flag

    def _is_impossible(self, here: Configuration) -> bool:
        name = self._call.op.name
        segment = here.state.find(name)
        return (
            segment is not None
            and name not in self._walk.removable
            and self._call.op.is_impossible(segment, self._given)
        )

    def _add(self, configuration: Configuration, outcomes: list[Outcome]) -> bool:
        """Keep ``configuration``, in which the call may have had any of these outcomes; False if that
        cannot be."""
        outcomes = [outcome for outcome in outcomes if self._may_deny(configuration, outcome)]
        segments = sorted(
            {shown for outcome in outcomes if (shown := outcome.shown_incarnation(self._given)) is not None}
        )
        fitting = [bound for shown in segments if (bound := configuration.with_id(*shown)) is not None]
        if not outcomes or (segments and not fitting):
            return False

        # If it may have been about one of several segments, nothing is learnt about their ids.
        self.found.append((fitting[0] if len(fitting) == 1 else configuration).without(self._call))
        return True

    def _may_deny(self, configuration: Configuration, outcome: Outcome) -> bool:
        denied = outcome.denied_incarnation(self._given)
        return denied is None or not configuration.has_id(*denied)


def _with_ids(configuration: Configuration, view: View) -> Configuration | None:
    """``configuration``, knowing the segment ids that ``view`` shows; None if they contradict what was shown
    before."""
    bound: Configuration | None = configuration
    for name, segment in configuration.state.segments:
        segment_id = view[name].segment_id
        if bound is not None and segment_id is not None:
            bound = bound.with_id(name, segment.number, segment_id)
    return bound


def _text(given: object) -> str:
    if isinstance(given, TierlogError):
        fields = {key: value for key, value in vars(given).items() if key != "segment"}
        return f"{type(given).__name__}({given}{f', {fields}' if fields else ''})"
    return brief(given) if isinstance(given, bytes) else repr(given)
