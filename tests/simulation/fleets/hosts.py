"""Simulated hosts, which speak the real control protocol, and the logs of their containers.

A log knows its newest epoch. To open it takes the next one, which fences the owner before; an append is acked
only by the newest owner. A fenced owner does not know it at once, and appends until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

import anyio
import attrs

from support.memory_objects import Bucket
from tierlog.actors.supervisor.control.messages import (
    LINE_BYTES_MAX,
    Challenge,
    Close,
    Closed,
    Drain,
    Failed,
    Fenced,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Open,
    Opened,
    Owners,
    Proved,
    Refuse,
    Report,
    Welcome,
    decode,
    encode,
)
from tierlog.actors.supervisor.control.messages import VERSION as NEWEST
from tierlog.actors.supervisor.control.proof import answer_challenge
from tierlog.actors.supervisor.control.record import ControlRecord, decode_control
from tierlog.journal.coordination.contract import CONTROL

from .network import HostEnd, Network, Pipe

_OWNERS = b'{"type":"owners"'
QUIET_SECONDS = 2.0
"""After which a host looks for another supervisor, as real ones do."""
NOTICE_SECONDS = 1.0
"""Within which an owner finds itself fenced."""
FAILING = 0.001
"""The share of openings that fail at first."""


class Violation(AssertionError):
    """What must never happen has happened."""


@attrs.define
class Timing:
    """Seconds that a host takes; each is the median of a distribution with a long tail."""

    opening: float = 0.3
    """An opening of a log in a bucket: some ten requests of 20 to 30 ms."""
    closing: float = 0.03
    spread: float = 0.4
    """Of the logarithm."""


class Logs:
    """All containers' logs."""

    def __init__(self, containers: int) -> None:
        self.epochs = [0] * containers
        self.owners: list[SimulatedHost | None] = [None] * containers
        self.acked = [0] * containers
        """The epoch of the newest ack."""
        self.openings = 0
        self.acks = 0
        self.refused = 0
        """Appends of fenced owners."""
        self.failures: list[float] = []
        """When openings failed."""
        self.needless: list[str] = []
        """Owners that were fenced although nothing was wrong with them."""
        self.hanging: set[int] = set()
        """Those that answer nobody."""
        self.waiting: list[Callable[[], object]] = []
        """What goes on when they answer again."""

    def open(self, index: int, host: SimulatedHost) -> int:
        before = self.owners[index]
        if before is not None and before is not host:
            if before.is_well and before.serves.get(index) == self.epochs[index]:
                self.needless.append(f"container {index}: {host.id} fenced {before.id}")
            before.find_later(index, self.epochs[index])
        self.openings += 1
        self.epochs[index] += 1
        self.owners[index] = host
        return self.epochs[index]

    def answer_again(self) -> None:
        self.hanging.clear()
        waiting, self.waiting = self.waiting, []
        for act in waiting:
            act()

    def append(self, index: int, epoch: int) -> bool:
        """Whether an owner with this epoch gets an ack."""
        if epoch != self.epochs[index]:
            self.refused += 1
            return False
        if epoch < self.acked[index]:
            raise Violation(f"container {index}: epoch {epoch} acks after epoch {self.acked[index]}")
        self.acked[index], self.acks = epoch, self.acks + 1
        return True


class SimulatedHost(HostEnd):
    """One process, from its start to its end."""

    def __init__(
        self,
        host_id: str,
        machine: str,
        number: int,
        network: Network,
        logs: Logs,
        random: Random,
        timing: Timing,
        *,
        is_curious: bool,
    ) -> None:
        """``number`` differs between all processes. ``is_curious``: it keeps the owners that it is sent."""
        self.id = host_id
        self.machine = machine
        self.number = number
        self.url = f"http://{host_id}.example.org:8471"
        self.serves: dict[int, int] = {}
        """The epoch of each container that it believes to own."""
        self.known: dict[int, str] = {}
        """The owners' URLs, by the supervisor's word."""
        self.is_alive = True
        self.is_curious = is_curious
        self.is_welcome = False
        self.refusal = ""
        self.bucket: Bucket | None = None
        self._network = network
        self._logs = logs
        self._random = random
        self._timing = timing
        self._pipe: Pipe | None = None
        self._record: ControlRecord | None = None
        self._rest = b""
        self._orders: dict[int, deque[Open | Close]] = {}
        self._term = 0
        self._version = 1
        self._interval = 1.0
        self._heard = 0.0
        self._leaving = False
        self._sequence = 0
        self._looks = 0
        self._away = 0.0

    # --- life ------------------------------------------------------------------------------------

    def start(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._dial()

    def leave(self) -> None:
        """SIGTERM: it asks for its containers to be moved."""
        self._leaving = True

    def kill(self) -> None:
        """SIGKILL: its system closes its connection."""
        self.is_alive = False
        if self._pipe is not None:
            self._pipe.close_from_host()

    def lose_power(self) -> None:
        self.is_alive = False
        self._network.darken(self.machine)

    @property
    def is_well(self) -> bool:
        """It serves, and its supervisor hears it."""
        return self.is_alive and self.is_welcome and not self._network.is_cut_off(self.machine)

    def break_connection(self, seconds: float) -> None:
        """What is on its way is lost, and so long it finds no supervisor."""
        self._away = anyio.current_time() + seconds
        if self._pipe is not None:
            self._pipe.break_off()

    def find_later(self, index: int, epoch: int) -> None:
        """It was fenced. Until it finds that, it appends."""
        notice = self._random.uniform(0, NOTICE_SECONDS)
        self._after(self._random.uniform(0, notice), lambda: self._append(index))
        self._after(notice, lambda: self._find_fenced(index, epoch))

    # --- the connection --------------------------------------------------------------------------

    def _dial(self) -> None:
        """Look where the supervisor is, again and again until it answers."""
        self._looks += 1
        if not self.is_alive or self._pipe is not None or self.bucket is None:
            return

        found = self.bucket.get(CONTROL, 1 << 16)
        record = decode_control(found.data, CONTROL) if found is not None else None
        is_away = anyio.current_time() < self._away
        if record is not None and record.term >= self._term and not is_away:
            self._rest, self._record = b"", record
            self._pipe = self._network.connect(self.machine, record.port, self)
            self._heard = anyio.current_time()
        if self._pipe is None:
            self._after(self._random.uniform(0.5, 1.0), self._dial)
        else:
            self._after(QUIET_SECONDS, lambda number=self._looks: self._look(number))  # type: ignore[misc]

    def _look(self, number: int) -> None:
        """Whether a supervisor that says nothing has a successor."""
        if number != self._looks or self._pipe is None:
            return

        assert self.bucket is not None
        quiet = anyio.current_time() - self._heard >= QUIET_SECONDS
        found = self.bucket.get(CONTROL, 1 << 16) if quiet else None
        if found is not None and decode_control(found.data, CONTROL).term > self._term:
            pipe, self._pipe = self._pipe, None
            pipe.close_from_host()
            self.is_welcome = False
            self._dial()
        else:
            self._after(1.0, lambda: self._look(number))

    def received(self, pipe: Pipe, data: bytes) -> None:
        if pipe is self._pipe and self.is_alive:
            self._heard = anyio.current_time()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if len(line) > LINE_BYTES_MAX:
                    raise Violation(f"a line of {len(line)} bytes")
                # Hundreds of hosts that keep a map of their own would be the cost of a run.
                if self.is_curious or not line.startswith(_OWNERS):
                    self._handle(decode(line))

    def ended(self, pipe: Pipe) -> None:
        if pipe is self._pipe:
            self._pipe, self.is_welcome = None, False
            self._after(self._random.uniform(0.02, 1.0), self._dial)

    def _send(self, report: Report) -> None:
        if self._pipe is not None:
            self._pipe.to_supervisor(encode(report))

    def _report(self, report: Report) -> None:
        """Without a supervisor it is dropped: the next hello has the present state."""
        if self.is_welcome:
            self._send(report)

    def _handle(self, message: Message) -> None:
        match message:
            case Challenge():
                assert self._record is not None
                self._send(answer_challenge(self._record.secret, message, f"{self.number:032x}"))
            case Proved():
                self._send(self._hello())
            case Refuse(reason):
                self.refusal = reason
                self.kill()
            case Welcome() if message.term < self._term:
                self._pipe = None
                self._dial()
            case Welcome():
                self._term, self._interval, self._version = message.term, message.heartbeat, message.version
                if not self.is_welcome:
                    self.is_welcome = True
                    self._beat(self._looks)
            case Owners(urls, is_part):
                self.known = {**self.known, **urls} if is_part else dict(urls)
            case Open() | Close() if message.term >= self._term:
                self._obey(message)
            case Leave() if message.term >= self._term:
                self._leaving = True
            case Drain() if message.term >= self._term:
                self._after(0.05, self._exit)

    def _hello(self) -> Hello:
        owned = {index: epoch for index, epoch in self.serves.items() if self._logs.epochs[index] == epoch}
        self.serves = dict(owned)
        return Hello(
            self.id,
            self.number,
            self.url,
            owned,
            self._term,
            newest=NEWEST,
            machine=self.machine,
            instance=f"{self.number:x}",
            leaving=self._leaving,
        )

    def _beat(self, number: int) -> None:
        if number == self._looks and self.is_welcome and self.is_alive:
            self._sequence += 1
            self._send(Heartbeat(self._sequence, 0.0, leaving=self._leaving))
            self._after(self._interval, lambda: self._beat(number))

    def _exit(self) -> None:
        """By order. Its connection ends before it has closed its containers."""
        if self._pipe is not None:
            self._pipe.close_from_host()
        self._pipe, self.is_welcome = None, False
        self._after(self._draw(self._timing.closing), self._close_all)

    def _close_all(self) -> None:
        for index in self.serves:
            self._append(index)
        self.is_alive = False

    # --- orders ----------------------------------------------------------------------------------

    def _obey(self, order: Open | Close) -> None:
        """Those about one container are carried out in turn."""
        waiting = self._orders.setdefault(order.index, deque())
        waiting.append(order)
        if len(waiting) == 1:
            self._begin(order.index)

    def _begin(self, index: int) -> None:
        waiting = self._orders[index]
        if not waiting:
            del self._orders[index]
            return

        order = waiting[0]
        if isinstance(order, Close):
            self._after(self._draw(self._timing.closing), lambda: self._close(order))
        elif index in self.serves and self.serves[index] == self._logs.epochs[index]:
            self._answer(order, Opened(index, order.request, self.serves[index]))
        else:
            self.serves.pop(index, None)
            seconds = self._draw(self._timing.opening)
            if self._random.random() < FAILING:
                self._logs.failures.append(anyio.current_time() + seconds)
                failed = Failed(index, order.request, "failed", "no answer in time")
                self._after(seconds, lambda: self._answer(order, failed))
            else:
                self._after(seconds / 2, lambda: self._fence(order, seconds / 2))

    def _fence(self, order: Open, seconds: float) -> None:
        if order.index in self._logs.hanging:
            self._logs.waiting.append(lambda: self._after(seconds, lambda: self._fence(order, seconds)))
            return

        epoch = self._logs.open(order.index, self)
        self._after(seconds, lambda: self._open(order, epoch))

    def _open(self, order: Open, epoch: int) -> None:
        self.serves[order.index] = epoch
        if not self._append(order.index):
            # Another one has opened it meanwhile.
            del self.serves[order.index]
            self._answer(order, Failed(order.index, order.request, "fenced", "another owner opened it"))
            return
        self._answer(order, Opened(order.index, order.request, epoch))

    def _close(self, order: Close) -> None:
        self._append(order.index)
        if self.serves.pop(order.index, None) is not None and self._logs.owners[order.index] is self:
            self._logs.owners[order.index] = None
        self._answer(order, Closed(order.index))

    def _answer(self, order: Open | Close, report: Report) -> None:
        # A later supervisor gave it no such request.
        if order.term == self._term:
            self._report(report)
        self._orders[order.index].popleft()
        self._begin(order.index)

    def _append(self, index: int) -> bool:
        return index in self.serves and self._logs.append(index, self.serves[index])

    def _find_fenced(self, index: int, epoch: int) -> None:
        if self.serves.get(index) == epoch:
            del self.serves[index]
            self._report(Fenced(index, epoch, "another owner opened it"))

    # --- time ------------------------------------------------------------------------------------

    def _draw(self, median: float) -> float:
        return median * self._random.lognormvariate(0, self._timing.spread)

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        def if_alive() -> None:
            if self.is_alive:
                act()

        self._network.agenda.after(seconds, if_alive)

    def owned(self) -> Iterator[int]:
        """What it serves by the logs' word."""
        return (index for index, epoch in self.serves.items() if self._logs.epochs[index] == epoch)

    def opens(self, index: int) -> bool:
        """Whether it was ordered to open the container, and has not."""
        return any(isinstance(order, Open) for order in self._orders.get(index, ()))
