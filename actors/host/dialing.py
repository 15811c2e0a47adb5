"""How a host connects to its supervisor: at the Unix socket of the one that started it, or over TCP at the
address in the record ``control`` of its store's bucket (rules V4, V11 and V12).

Cancellation closes what is not returned.
"""

from __future__ import annotations

import errno
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, NoReturn

import anyio
import anyio.lowlevel

from ...journal.coordination.contract import CONTROL, IDENTITY, Coordination
from ...storage_backends.base.errors import TierlogError, Unavailable
from ..folder.identity import decode
from ..gateway.server.listener import ServerAddress
from ..supervisor.control.messages import Challenge, Lines, Message, Proof, Proved, encode
from ..supervisor.control.proof import PROOF_BYTES_MAX, answer_challenge, is_confirmed
from ..supervisor.control.record import ControlRecord, decode_control
from ..telemetry.logging import get_logger

_log = get_logger("host")
DIAL_SECONDS = 10.0
"""For all of one attempt: the record, the connection, the proof."""
_ADDRESS_SECONDS = 2.0
"""For an address that is not the last one of its name."""


class Refused(Exception):
    """The supervisor refused this host: another process serves as it, or its version differs."""


class Dialer(ABC):
    pause_max = 0.25
    """The longest pause between two attempts, in seconds."""
    quiet: float | None = None
    """Seconds without a message after which ``is_replaced`` is asked, and then four times as often; None if
    the end of the connection always shows that a supervisor is gone."""

    @abstractmethod
    async def dial(self, term: int) -> socket.socket | None:
        """A connection on which hello comes next; None if there is no supervisor with at least this term, or
        if it is busy. Raises ``Refused`` if this host cannot serve there."""

    async def is_replaced(self, term: int) -> bool:
        """Whether a supervisor with a higher term has started."""
        await anyio.lowlevel.checkpoint()
        return False


class SocketDialer(Dialer):
    """To whichever supervisor listens at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def dial(self, term: int) -> socket.socket | None:
        await anyio.lowlevel.checkpoint()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A full queue of the listener would block the loop: it fails at once, and is tried again.
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return None
        return connection


class RecordDialer(Dialer):
    """To the supervisor that the record names."""

    pause_max = 0.5
    quiet = 2.0

    def __init__(
        self, coordination: Coordination, store: str, url_host: str, new_nonce: Callable[[], str]
    ) -> None:
        """``store``: the id in hexadecimal of the store that the host has opened. ``url_host``: the address
        that it tells clients. ``new_nonce`` returns 32 hexadecimal digits that were never used."""
        self._coordination = coordination
        self._store = store
        self._url_host = url_host
        self._new_nonce = new_nonce
        self._logged = ""

    async def dial(self, term: int) -> socket.socket | None:
        reason = f"no answer within {DIAL_SECONDS:g} s"
        with anyio.move_on_after(DIAL_SECONDS):
            try:
                connection = await self._dial(term)
            except TierlogError as error:
                reason = str(error)
            else:
                self._logged = ""
                return connection
        # Once for each reason: it is tried again twice a second.
        if reason != self._logged:
            self._logged = reason
            _log.warning("supervisor_not_reached", reason=reason)
        return None

    async def is_replaced(self, term: int) -> bool:
        with anyio.move_on_after(DIAL_SECONDS):
            try:
                record = await self._record()
                return record.is_of(self._store) and record.term > term
            except TierlogError:
                # Nobody can follow a supervisor while the bucket is away.
                return False
        return False

    async def _record(self) -> ControlRecord:
        found, place = await self._coordination.load(CONTROL), self._coordination.place(CONTROL)
        if found is None:
            raise Unavailable(
                f"{place} is missing: no supervisor that hosts can join has served this store; start "
                f"`tierlog serve` or `tierlog supervise`"
            )
        return decode_control(found.data, place)

    async def _dial(self, term: int) -> socket.socket:
        record = await self._record()
        # V11: before its term, which is another store's.
        if not record.is_of(self._store):
            await self._refuse(record)
        # V1: that of a supervisor that was replaced, and whose successor's comes.
        if record.term < term:
            raise Unavailable(
                f"the supervisor of term {record.term} was replaced by that of term {term}; if there is "
                f"none, because the store was put back to an earlier state, start this host again"
            )
        if is_loopback(self._url_host) and not is_loopback(record.address):
            raise Refused(
                f"the supervisor is at {record.address}, and this host at {self._url_host}, which clients on "
                f"other machines cannot reach: start it with --listen ADDRESS or, if that is 0.0.0.0, with "
                f"--advertise NAME besides"
            )
        try:
            with _closed_on_error(await _connect(record.address, record.port)) as connection:
                await _prove(connection, record, self._new_nonce())
                return connection
        except OSError as error:
            raise Unavailable(_unreachable(record, error)) from error

    async def _refuse(self, record: ControlRecord) -> NoReturn:
        """V11: the record of another store ends this host only if that store is there."""
        found, place = await self._coordination.load(IDENTITY), self._coordination.place(IDENTITY)
        # It is put before the first record `control` of its store.
        if found is not None and decode(found.data, place).store_id.hex() != self._store:
            raise Refused(
                f"this host has store {self._store} open, and the supervisor on {record.machine} is that of "
                f"store {record.store_id.hex()}, which was made in its place: start the host again"
            )
        raise Unavailable(
            f"{self._coordination.place(CONTROL)} is that of store {record.store_id.hex()}, but {place} does "
            f"not say that it was made in the place of {self._store}: the next supervisor replaces the record"
        )


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _unreachable(record: ControlRecord, error: OSError) -> str:
    where = f"the supervisor on {record.machine} at {ServerAddress(record.address, record.port)}"
    advice = "if it runs, let its port through; the setting server.control_port fixes that"
    if is_loopback(record.address) and record.machine != socket.gethostname():
        advice = (
            "that is an address which only its own machine can reach: start the supervisor with --listen "
            "ADDRESS:PORT or, if ADDRESS is 0.0.0.0, with --advertise NAME besides; the setting "
            "server.control_port fixes the port for hosts"
        )
    return f"{where} cannot be reached ({error.strerror or error}): {advice}"


@contextmanager
def _closed_on_error(connection: socket.socket) -> Generator[socket.socket]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


async def _connect(address: str, port: int) -> socket.socket:
    """To the first of the addresses of a name that answers."""
    found = await anyio.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for number, (family, kind, protocol, _, target) in enumerate(found, 1):
        # One that drops what is sent must leave time for the others.
        with anyio.move_on_after(_ADDRESS_SECONDS if number < len(found) else None):
            try:
                return await _connect_to(socket.socket(family, kind, protocol), target)
            except OSError as error:
                failure = failure or error
    raise failure or TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


async def _connect_to(made: socket.socket, target: Any) -> socket.socket:
    with _closed_on_error(made) as connection:
        connection.setblocking(False)
        # Small messages, for which openings wait.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection.connect(target)
        except BlockingIOError:
            await anyio.wait_writable(connection)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code)) from None
        return connection


async def _prove(connection: socket.socket, record: ControlRecord, nonce: str) -> None:
    """Raises ``Unavailable`` unless the other side is the supervisor of the record."""
    lines = Lines(PROOF_BYTES_MAX)
    challenge = await _receive(connection, lines)
    if isinstance(challenge, Challenge):
        proof: Proof = answer_challenge(record.secret, challenge, nonce)
        connection.send(encode(proof))  # an empty buffer takes it at once
        proved = await _receive(connection, lines)
        if isinstance(proved, Proved) and is_confirmed(record.secret, challenge, proof, proved):
            return
    raise Unavailable(
        f"what listens at {ServerAddress(record.address, record.port)} is not the supervisor of term "
        f"{record.term}, or not any more"
    )


async def _receive(connection: socket.socket, lines: Lines) -> Message | None:
    """One message; None at the connection's end, or if more comes than one."""
    received: list[Message] = []
    while not received:
        await anyio.wait_readable(connection)
        data = connection.recv(lines.limit)
        if not data:
            return None
        received = lines.feed(data)
    return received[0] if len(received) == 1 else None
