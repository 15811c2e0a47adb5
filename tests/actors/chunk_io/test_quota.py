"""The quota (rules A15 and C6): what is refused above the safe size, and what never is."""

from __future__ import annotations

import pytest

from tierlog.actors.chunk_io.quota import Quota
from tierlog.storage_backends.base.errors import StorageFull


def test_bytes_written_since_the_measurement_count() -> None:
    quota = Quota(100)
    quota.measure(60)
    quota.add(40)
    with pytest.raises(StorageFull):
        quota.check("data/a")
    quota.measure(70)
    quota.check("data/a")
    assert repr(quota) == "<Quota 70 of 100 B>"


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
