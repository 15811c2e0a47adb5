"""A folder's fingerprint: what a copy of the folder does not have.

It is a hash of the machine's id and the folder's inode, which a boot does not change. The host's name and the
device number are not in it: containers get a new name at each start, and kernels number some file systems
anew. A folder that was copied, restored, or moved to another machine has another fingerprint. A difference is
therefore a reason to wait, never proof of anything (rule G4)."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

from msgspec import Struct

from ...storage_backends.base.codec import Encoder
from ...storage_backends.base.files import Close, FileNumbers, Open, Program, Read
from ..telemetry.printable import printable

FINGERPRINT_BYTES = 16
LOCATION_BYTES_MAX = 1024
_MACHINE_ID = "/etc/machine-id"
_MACHINE_ID_BYTES_MAX = 256


class Fingerprint(Struct, frozen=True):
    digest: bytes = bytes(FINGERPRINT_BYTES)
    """Zeros: unknown, equal to any other."""
    location: str = ""
    """``host:path``, for display: whoever wrote it may have been anybody."""

    @property
    def shown(self) -> str:
        """The location as messages have it."""
        return printable(self.location)

    def differs_from(self, other: Fingerprint) -> bool:
        """Whether both are known and not equal."""
        return any(self.digest) and any(other.digest) and self.digest != other.digest


def read_fingerprint(folder: str, host: str, final: str = "") -> Program[Fingerprint]:
    """The fingerprint of the existing ``folder``. For display only: ``host``, and ``final``, its name once it
    is complete."""
    _, inode = yield FileNumbers(folder)
    machine = b""
    with suppress(OSError):  # there is none outside of Linux; the other parts are enough
        handle = yield Open(_MACHINE_ID)
        machine = yield Read(handle, 0, _MACHINE_ID_BYTES_MAX)
        yield Close(handle)
    parts = Encoder().blob(machine).text(str(inode)).finish()
    # Cut in bytes, as it is stored; the cut may split a character, which is dropped.
    location = f"{host}:{final or folder}".encode("utf-8", "replace")[:LOCATION_BYTES_MAX]
    digest = blake2b(parts, digest_size=FINGERPRINT_BYTES).digest()
    return Fingerprint(digest, location.decode("utf-8", "ignore"))
