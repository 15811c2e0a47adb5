"""A plan is decided by its seed alone, and steps can be cut without changing what the others mean."""

from __future__ import annotations

from collections import Counter

from simulation.intents import Memory, calls_of
from simulation.plan import FaultKind, Verb, keep
from simulation.planner import ALWAYS, make_plan

ASKED_IN_BLOCKS = (Verb.READ_ALL, Verb.TAIL, Verb.FLUSH, Verb.WRONG, Verb.TRANSACTIONS)


def test_a_seed_decides_everything() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)


def test_actions_and_faults_share_one_numbering() -> None:
    plan = next(plan for plan in map(make_plan, range(20)) if plan.faults)
    assert len(plan.actions) == 200
    assert plan.numbers == tuple(range(1, len(plan.actions) + len(plan.faults) + len(plan.beside) + 1))


def test_cut_steps_leave_the_others_as_they_are() -> None:
    plan = make_plan(7)
    cut = keep(plan, plan.numbers[::3])
    assert cut.numbers == plan.numbers[::3]
    assert set(cut.actions) < set(plan.actions)
    assert keep(plan, plan.numbers) == plan


def test_seeds_differ_in_what_they_enable() -> None:
    plans = [make_plan(seed, 60) for seed in range(150)]
    assert any(not plan.faults for plan in plans)
    assert {fault.kind for plan in plans for fault in (*plan.faults, *plan.beside)} == set(FaultKind)
    assert {action.verb for plan in plans for action in plan.actions} == set(Verb)
    enabled = Counter(frozenset(action.verb for action in plan.actions) for plan in plans)
    assert len(enabled) > 30
    assert len({plan.site for plan in plans}) > 30


def test_some_actions_are_in_every_plan() -> None:
    assert all(
        {action.verb for action in make_plan(seed, 400).actions}.issuperset(ALWAYS) for seed in range(5)
    )


def test_every_intent_becomes_calls_whatever_the_client_knows() -> None:
    plan = make_plan(11, 500)
    for action in plan.actions:
        if action.verb in ASKED_IN_BLOCKS:
            continue

        names = plan.families[action.family]
        calls = list(calls_of(action, names, Memory(action.client), plan.clients))
        assert calls
        assert calls == list(calls_of(action, names, Memory(action.client), plan.clients))
        assert all(name.partition("#txn.")[0] in names for call in calls for name in call.names)


def test_an_append_in_doubt_is_resent_as_it_was() -> None:
    memory = Memory(0)
    plans = [make_plan(seed) for seed in range(5)]
    appends = [
        action
        for plan in plans
        for action in plan.actions
        if action.verb is Verb.APPEND_EVENT and action.size
    ]
    first = list(calls_of(appends[0], ("f/s",) * 5, memory, 3))[-1]
    memory.doubtful(first)
    again = [list(calls_of(action, ("f/s",) * 5, memory, 3))[-1] == first for action in appends]
    assert again.count(True) > again.count(False)
