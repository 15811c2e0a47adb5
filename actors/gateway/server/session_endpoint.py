"""The request that turns its connection into a session (rule N1)."""

from __future__ import annotations

from ....storage_backends.base.errors import InvalidArgument
from ..wire import paths
from ..wire.errors import CrossOrigin
from ..wire.session import PROTOCOL
from .call import HttpCall
from .context import ServerContext
from .endpoint import Success, endpoint


@endpoint(
    "GET",
    paths.SESSION,
    "session",
    CrossOrigin,
    successes=(
        Success(
            101, f"From here on the connection carries frames of `{PROTOCOL}`: docs/protocols/session.md."
        ),
    ),
)
async def session(call: HttpCall[ServerContext]) -> None:
    """Turn the connection into a session, which carries many requests at once; for tierlog's clients."""
    # The bytes of a body would be taken for frames.
    has_body = call.header("Transfer-Encoding") or (call.header("Content-Length") or "").strip("0")
    if has_body or not call.scope.get("tierlog.wishes_session"):
        raise InvalidArgument(
            f"this path takes a request with `Upgrade: {PROTOCOL}`, without a body, and no proxy in between"
        )

    # H18: its calls may change something, whatever its own method is.
    refusal = call.server.guard.refusal({**call.scope, "method": "POST"})
    if refusal is not None:
        raise refusal

    call.server.check_serving()
    await call.begin(101, {"Connection": "Upgrade", "Upgrade": PROTOCOL})
    await call.block(b"", more=False)
