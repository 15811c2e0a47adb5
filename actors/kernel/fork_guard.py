"""How often this process is the child of a fork.

Owns: the count. A store or client remembers it when it is made and refuses use where it is another one: its
sockets, descriptors and tasks belong to the parent. Cheaper to compare than a process id, which costs a
system call.
"""

from __future__ import annotations

import os


class _Forks:
    count = 0

    def note(self) -> None:
        self.count += 1


forks = _Forks()
os.register_at_fork(after_in_child=forks.note)
