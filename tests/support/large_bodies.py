"""The large bodies that a server received where they stay."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tierlog.actors.gateway.server.large_body import LargeBody


def note_large_bodies(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[LargeBody]:
    """Those that ``module`` makes from now on."""
    found: list[LargeBody] = []

    class Noted(LargeBody):
        def __enter__(self) -> Any:
            found.append(self)
            return super().__enter__()

    monkeypatch.setattr(module, "LargeBody", Noted)
    return found
