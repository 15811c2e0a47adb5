"""How often this process was forked.

A store or a client remembers the count when it is made and refuses use when it differs: its sockets,
descriptors and tasks belong to the parent. Reading a count is cheaper than a process id, which costs a system
call.
"""

from __future__ import annotations

import os


class _Forks:
    count = 0

    def note(self) -> None:
        self.count += 1


forks = _Forks()
os.register_at_fork(after_in_child=forks.note)
