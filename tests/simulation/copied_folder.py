"""One of the folders that share long-term storage in a world of copies."""

from __future__ import annotations

import attrs

from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.journal.log.memory import MemoryLogService

from .disk import SimulatedDisk
from .invariants import Broken
from .process import Process
from .world import FIRST_LOG, ServiceFolder

HERE, THERE = Fingerprint(b"h" * 16, "here:/data/wal"), Fingerprint(b"t" * 16, "there:/copy/wal")


@attrs.define(eq=False)
class Folder:
    """One folder, and what its owners acked."""

    name: str
    logs: MemoryLogService
    fingerprint: Fingerprint
    acked: dict[str, bytes] = attrs.field(factory=dict)
    starts: dict[str, int] = attrs.field(factory=dict)
    doubts: dict[str, bytes] = attrs.field(factory=dict)
    """What may follow the acked bytes."""
    process: Process | None = None
    versions: dict[int, int] = attrs.field(factory=dict)
    """The highest version that its last owners gave, by container."""
    starts_sent: dict[str, int] = attrs.field(factory=dict)
    """The highest start of a truncation, which may be in doubt."""
    log_id: bytes = FIRST_LOG

    @property
    def runs(self) -> str:
        return f"/runs-{self.name}"

    def served(self, *, adopt: bool = False) -> ServiceFolder:
        return ServiceFolder(self.logs, self.runs, self.fingerprint, adopt, self.log_id)

    def copied(
        self, name: str, fingerprint: Fingerprint, disk: SimulatedDisk, *, with_runs: bool = True
    ) -> Folder:
        """``with_runs``: with the local copies of runs."""
        logs = MemoryLogService()
        for log, journal in self.logs._states.items():
            logs._states[log] = attrs.evolve(journal, groups=list(journal.groups))
        copy = Folder(
            name,
            logs,
            fingerprint,
            dict(self.acked),
            dict(self.starts),
            dict(self.doubts),
            log_id=self.log_id,
        )
        for path in disk.files_below(copy.runs):
            disk.unlink(path)  # of an earlier copy
        for path in disk.files_below(self.runs) if with_runs else ():
            disk.put(f"{copy.runs}{path.removeprefix(self.runs)}", disk.content(path))
        return copy

    def check_versions(self, other: Folder, alone: int | None = None) -> None:
        """Whoever adopts a folder gives no version again that owners of the other one gave (rule J6).
        ``alone``: the only container that has another log."""
        assert self.process is not None
        for container in self.process.containers():
            if alone in (None, container.index) and container.state.sequence <= other.versions.get(
                container.index, 0
            ):
                raise Broken(f"it does not hold that folder {self.name} gives no version again")
