"""A whole look at one family by whoever may be sure of it: its segments, and the transactions that the owner
knows.

Owns: both looks, made in one call each and at most ``LOOK_SECONDS`` long. Does not own: what the answers mean
(``view.py``, the checkers), nor when a look may be believed (``nemesis.py``, ``run.py``).
"""

from __future__ import annotations

from .clients import Client
from .process import Process
from .stage import Ending, Stage
from .view import View, look

LOOK_SECONDS = 60.0


async def take_look(stage: Stage, process: Process, family: str) -> tuple[View | None, str]:
    """What ``process`` shows of the segments, or why it shows nothing."""
    checker, targets = stage.checkers[family], stage.names_of(family)
    outcome = await stage.attempt(
        process,
        f"look at {family}",
        lambda store: look(store, family, checker.writers, targets),
        seconds=LOOK_SECONDS,
    )
    if outcome.ending is Ending.ANSWERED:
        return outcome.value, ""
    return None, f"{outcome.ending.value}: {outcome.value!r}"


async def list_transactions(stage: Stage, process: Process, family: str) -> str:
    """Tell the checker what ``process`` knows of transactions; or why that cannot be, else ""."""
    outcome = await Client(stage.plan.clients, (), stage).list_transactions(
        process, family, seconds=LOOK_SECONDS
    )
    return "" if outcome.ending is Ending.ANSWERED else f"{outcome.ending.value}: {outcome.value!r}"
