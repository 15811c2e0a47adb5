"""The quota (rules A15 and C6): what is refused above the safe size, and what never is."""

from __future__ import annotations

import pytest

from tierlog.actors.chunk_io.quota import Quota
from tierlog.storage_backends.base.errors import StorageFull


def test_users_are_refused_from_the_safe_size_on() -> None:
    quota = Quota(100)
    quota.measure(99)
    quota.check("data/a")
    quota.measure(100)
    with pytest.raises(StorageFull, match="holds 100 bytes, its safe size is 100"):
        quota.check("data/a")
    assert quota.statistics().refused == 1


def test_bytes_written_since_the_measurement_count() -> None:
    quota = Quota(100)
    quota.measure(60)
    quota.add(40)
    with pytest.raises(StorageFull):
        quota.check("data/a")
    quota.measure(70)
    quota.check("data/a")
    assert repr(quota) == "<Quota 70 of 100 B>"


def test_the_stores_own_chunks_are_exempt() -> None:
    quota = Quota(100)
    quota.measure(1000)
    quota.check("_system/containers/0/epoch.1")


def test_zero_means_no_limit() -> None:
    quota = Quota(0)
    quota.measure(1 << 60)
    quota.check("data/a")
    assert not quota.is_limited


def test_a_missed_measurement_leaves_the_last_one() -> None:
    quota = Quota(100)
    quota.measure(50)
    quota.missed()
    assert (quota.statistics().used_bytes, quota.statistics().measured, quota.statistics().missed) == (
        50,
        1,
        1,
    )
