"""Machines on one: network namespaces behind a router, which is this process's own namespace.

A machine has its own address, host name and folder, and its processes reach other machines only through the
router. There a pair of machines is parted (packets between them vanish), one is cut off from all (its link is
down), or its link is slow. An ordinary user can have them where user namespaces are allowed: ``enter_router``
replaces this process by itself in new namespaces.

Nothing outside sees them, and nothing of them stays: a namespace ends with its last process, and every
process of a machine is killed when this one ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import attrs

from chaos_parts.processes import RunError

_ROUTER = "TIERLOG_CHAOS_NAMESPACE"
"""The environment variable with the namespace that ``enter_router`` left."""
_PROGRAMS = ("ip", "mount", "nsenter", "setpriv", "tc", "unshare")
_FORWARDING = "echo 1 >/proc/sys/net/ipv4/ip_forward"
_TRIAL = f"""\
{_FORWARDING} &&
ip link add name tierlog0 type veth peer name tierlog1 &&
ip rule add from 10.77.0.1 to 10.77.0.2 blackhole"""
_HOLD = "import socket, sys; socket.sethostname(sys.argv[1]); print(flush=True); sys.stdin.read()"
_BURST_BYTES, _QUEUE_BYTES = 4_000, 400_000


def missing() -> str:
    """What machines need and this one lacks; empty if there can be some."""
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(absent)} not found: install util-linux and iproute2"
    return _find_unshare()[1]


def _find_unshare() -> tuple[list[str], str]:
    """The command that makes the namespaces, or why none does."""
    reason = ""
    for user in (("--user", "--map-root-user"), ()):
        command = ["unshare", *user, "--net", "--mount"]
        done = subprocess.run([*command, "sh", "-c", _TRIAL], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command, ""
        reason = reason or done.stderr.strip()
    return [], f"no network namespaces: {reason}; be root, or allow user namespaces"


def is_router() -> bool:
    """Whether this process is the one that ``enter_router`` made."""
    return os.environ.get(_ROUTER, "") not in ("", _own_namespace())


def enter_router() -> None:
    """Replace this process by the same program in namespaces of its own. Raises ``RunError`` if there can be
    none."""
    if reason := missing():
        raise RunError(reason)
    command, _ = _find_unshare()
    os.environ[_ROUTER] = _own_namespace()
    os.execvp(command[0], [*command, "--", sys.executable, *sys.orig_argv[1:]])


def _own_namespace() -> str:
    return os.readlink("/proc/self/ns/net")


@attrs.frozen(eq=False)
class Machine:
    name: str
    number: int
    folder: Path
    _holder: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"10.77.{self.number}.2"

    @property
    def link(self) -> str:
        """The router's end of its link."""
        return f"tierlog{self.number}"

    def command(self, *command: str) -> list[str]:
        """What runs ``command`` there, as the same process. It is killed when the thread that starts it
        ends."""
        there = ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--"]
        return [*there, "setpriv", "--pdeathsig", "KILL", "--", *command]

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait()


class Network:
    """The router. Faults add up; ``heal`` ends all of them. Machines know each other's names."""

    def __init__(self, folder: Path) -> None:
        """``folder`` gets the file of names."""
        self.machines: list[Machine] = []
        self._parted: set[tuple[str, str]] = set()
        self._cut: set[str] = set()
        self._slow: set[str] = set()
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        # Seen in this namespace alone. Without it some look for names in a network that is not there.
        _run("mount", "--bind", str(self._hosts), "/etc/hosts")
        _run("sh", "-c", _FORWARDING)
        _run("ip", "link", "set", "lo", "up")

    def add(self, name: str, folder: Path) -> Machine:
        """A machine with a new folder."""
        folder.mkdir()
        number = len(self.machines) + 1
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--", sys.executable, "-S", "-c", _HOLD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal ends its processes first
        )
        machine = Machine(name, number, folder, holder)
        self.machines.append(machine)
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise RunError(f"no namespace for the machine {name}")
        with self._hosts.open("a") as names:
            names.write(f"{machine.address} {name}\n")
        router = f"10.77.{number}.1"
        _run(
            *("ip", "link", "add", "name", machine.link, "type", "veth"),
            *("peer", "name", "eth0", "netns", str(holder.pid)),
        )
        _run("ip", "address", "add", f"{router}/24", "dev", machine.link)
        _run("ip", "link", "set", machine.link, "up")
        for command in (
            "link set lo up",
            f"address add {machine.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {router}",
        ):
            _run(*machine.command("ip", *command.split()))
        return machine

    def part(self, one: Machine, others: Iterable[Machine]) -> None:
        """Packets between ``one`` and the others vanish."""
        for other in others:
            for pair in ((one.address, other.address), (other.address, one.address)):
                if pair not in self._parted:
                    self._parted.add(pair)
                    _run("ip", "rule", "add", "from", pair[0], "to", pair[1], "blackhole")

    def cut(self, machine: Machine) -> None:
        """Its link is down: nothing passes, and the router tells others that there is no way."""
        self._cut.add(machine.link)
        _run("ip", "link", "set", machine.link, "down")

    def slow(self, machine: Machine, kilobits: int) -> None:
        """It receives so much in a second; what waits is late, and what finds no room is lost."""
        if machine.link in self._slow:
            return
        self._slow.add(machine.link)
        _run(
            *("tc", "qdisc", "add", "dev", machine.link, "root", "tbf"),
            *("rate", f"{kilobits}kbit", "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES)),
        )

    def heal(self) -> None:
        for source, target in self._parted:
            _run("ip", "rule", "del", "from", source, "to", target, "blackhole")
        for link in self._cut:
            _run("ip", "link", "set", link, "up")
        for link in self._slow:
            _run("tc", "qdisc", "del", "dev", link, "root")
        self._parted.clear()
        self._cut.clear()
        self._slow.clear()

    def close(self) -> None:
        for machine in self.machines:
            machine.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)}: {done.stderr.strip()}")
