"""A full observation of one family: its segments, and the transactions that the owner knows."""

from __future__ import annotations

from .clients import Client
from .process import Process
from .stage import Ending, Stage
from .view import View, look

OBSERVATION_SECONDS = 60.0


async def observe_family(stage: Stage, process: Process, family: str) -> tuple[View | None, str]:
    """What ``process`` shows of the segments, or why it shows nothing."""
    checker, targets = stage.checkers[family], stage.names_of(family)
    outcome = await stage.attempt(
        process,
        f"look at {family}",
        lambda store: look(store, family, checker.writers, targets),
        seconds=OBSERVATION_SECONDS,
    )
    if outcome.ending is Ending.ANSWERED:
        return outcome.value, ""
    return None, f"{outcome.ending.value}: {outcome.value!r}"


async def list_transactions(stage: Stage, process: Process, family: str) -> str:
    """Tell the checker what ``process`` knows of transactions; or why that cannot be, else ""."""
    outcome = await Client(stage.plan.clients, (), stage).list_transactions(
        process, family, seconds=OBSERVATION_SECONDS
    )
    return "" if outcome.ending is Ending.ANSWERED else f"{outcome.ending.value}: {outcome.value!r}"
