"""The crash scenarios of long-term storage: what an order of calls shows that no crash can, and that their verdicts can fail."""

from __future__ import annotations

from functools import partial
from random import Random
from unittest import mock

import pytest

from support.crash_enumeration import live, missing
from support.crash_judge import Judge
from support.crash_scenarios import SCENARIOS
from support.virtual import run_virtual
from tierlog.actors import restoring
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.chunked.operations import debts

CHUNK = "Unlink */lts/containers/*"


@pytest.mark.parametrize("scenario", ["debt-truncate", "debt-delete", "defrag-debt", "relocate"])
def test_no_chunk_of_a_debt_goes_before_the_end_of_its_cycle(scenario: str) -> None:
    """Rules F2, F6. The log alone would forgive it: no crash can show it while recovery needs nothing but the log."""
    events = run_virtual(partial(live, SCENARIOS[scenario], 0), 0).events
    begin = events.index("Begin 2")
    until_the_end = events[begin : events.index("Logged CycleComplete", begin)]
    assert not missing(until_the_end, ["Logged CommitMetadata"])
    assert missing(until_the_end, [CHUNK])


def _crash_at_calls(scenario: str) -> None:
    judge = Judge(SCENARIOS[scenario])
    for instant in run_virtual(partial(live, SCENARIOS[scenario], 0), 0).instants:
        judge.crash(instant, "none", Random(0))


@pytest.mark.parametrize(
    "scenario, place, name, planted",
    [
        ("debt-delete", debts, "_write_down", lambda txn, stored, left: txn.owe(left) if stored is None else txn.metadata.drop(stored)),
        ("restore", restoring, "sync_ancestry", lambda folder: iter(())),
    ],
)
def test_a_planted_bug_is_caught(scenario: str, place: object, name: str, planted: object) -> None:
    """A step takes its debt out although something is left; the rename that ends a restore is not synced."""
    with mock.patch.object(place, name, planted), pytest.raises((AssertionError, TierlogError)):
        _crash_at_calls(scenario)
