"""Local files whose calls a test sees, and makes to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from simulation.mutants.programs import rerouted

from tierlog.storage_backends.base.files import IoCall, Program, T
from tierlog.storage_backends.files.local import LocalFiles


class ScriptedFiles(LocalFiles):
    """``fail`` gives the error of a call, or None."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail: Callable[[IoCall], OSError | None] = lambda call: None

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> Self:
        self._drive = super().lane(name, width, nofollow_root)._drive
        return self

    async def run(self, program: Program[T]) -> T:
        return await super().run(rerouted(program, self._perform))

    def _perform(self, call: IoCall) -> Program[Any]:
        self.calls.append(type(call).__name__)
        if (error := self.fail(call)) is not None:
            raise error
        return (yield call)
