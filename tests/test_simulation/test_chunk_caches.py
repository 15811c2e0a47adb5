"""Worlds with a chunk cache on the host's disk: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

import pytest
from simulation.mutants.catalogue import CATALOGUE
from simulation.plan import FaultKind
from simulation.planner import make_plan
from simulation.run import run_seed
from simulation.settings import ChunksKind

STRUCK = 63
"""A seed whose cache meets many faults."""


def test_about_every_tenth_seed_has_a_chunk_cache_in_front_of_objects() -> None:
    sites = [make_plan(seed, 20).site for seed in range(400)]
    cached = [site for site in sites if site.chunk_cache]
    assert 20 < len(cached) < 60
    assert {site.chunks for site in cached} == {ChunksKind.OBJECTS}


@pytest.mark.parametrize(
    "seed", [STRUCK, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2, 17, 31, 52))]
)
def test_worlds_with_a_chunk_cache_find_nothing(seed: int) -> None:
    verdict = run_seed(seed)

    assert verdict.violation is None
    assert verdict.counts[FaultKind.CHUNK_CACHE.value]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("cached-bytes-are-not-verified", STRUCK),
        ("cache-is-not-reconciled", 22),
        ("failure-of-the-cache-is-one-of-the-storage", STRUCK),
        pytest.param("deleted-chunk-stays-in-the-cache", 17, marks=pytest.mark.extended),
        pytest.param("files-of-others-are-removed", 6, marks=pytest.mark.extended),
        pytest.param("cache-grows-without-a-bound", 31, marks=pytest.mark.extended),
    ],
)
def test_a_bug_of_the_chunk_cache_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(seed).violation
