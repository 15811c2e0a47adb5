"""A folder's fingerprint: what counts as a move (rule G4)."""

from __future__ import annotations

from typing import Any

from tierlog.actors.folder.fingerprint import Fingerprint, read_fingerprint


def fingerprint(host: str, device: int, inode: int) -> Fingerprint:
    program: Any = read_fingerprint("/data/wal", host)
    next(program)
    program.send((device, inode))
    try:
        program.throw(FileNotFoundError())  # no machine id
    except StopIteration as end:
        found: Fingerprint = end.value
        return found
    raise AssertionError("it asks for more")


def test_a_new_host_name_or_device_number_is_no_move_and_another_inode_is_one() -> None:
    here = fingerprint("pod-1", 1, 2)
    assert not here.differs_from(fingerprint("pod-2", 7, 2))
    assert here.differs_from(fingerprint("pod-1", 1, 3))
    assert fingerprint("pod-2", 7, 2).location == "pod-2:/data/wal"
