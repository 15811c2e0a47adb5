"""Answers of an S3 service, and failures on the way to it, as errors of the chunk contract.

Every row depends on one question: can the request have taken effect? After a refusal it has not. Without a
valid answer, and after every 5xx that is not a refusal, the outcome of a request that others can see is
unknown; one that others cannot see, such as a read or a part of an upload, can simply be repeated.
"""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import attrs
from botocore import exceptions as boto

from ..base.connection_reason import connection_reason
from ..base.errors import (
    ChunkExists,
    ChunkNotFound,
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
    Unsupported,
)


@attrs.frozen
class RequestInfo:
    """What messages and outcomes need to know about a request."""

    operation: str
    """The client's method: ``put_object``."""
    bucket: str
    endpoint: str
    key: str = ""
    name: str = ""
    """The chunk's name, or empty."""
    visible: bool = False
    """Whether others can see its effect."""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.key}" if self.key else f"s3://{self.bucket}"


_CREDENTIALS = "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role of this machine"
_REGION = "the bucket {bucket} is in another region; set `region` of [s3] in the configuration, or AWS_REGION"

_UNKNOWN_KEY = "{endpoint} does not know the access key" + _CREDENTIALS

_CONFIGURATION = {
    "NoSuchBucket": "there is no bucket {bucket} at {endpoint}; make it, or correct its name",
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "XAdminUserNotFound": _UNKNOWN_KEY,
    "SignatureDoesNotMatch": "{endpoint} refuses the signature: the secret key does not belong to the "
    "access key" + _CREDENTIALS,
    "ExpiredToken": "the credentials for {endpoint} have expired; renew them",
    "TokenRefreshRequired": "the credentials for {endpoint} have expired; renew them",
    "InvalidToken": "the session token is not one of {endpoint}; renew the credentials",
    "AccessDenied": "the credentials may not do {operation} on {url}; allow it in the policy of the "
    "bucket or of the user",
    "Forbidden": "the credentials may not do {operation} on {url}; allow it in the policy of the bucket "
    "or of the user",
    "AllAccessDisabled": "access to {url} is switched off at the service; switch it on there",
    "RequestTimeTooSkewed": "the clock of this machine and that of {endpoint} are too far apart; set it",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
}
"""Refusals that last until an operator corrects something."""

_SLOW_DOWN = "{endpoint} asks to slow down: it is overloaded or limits requests, so try again later"
_REFUSALS = {
    "SlowDown": _SLOW_DOWN,
    "Throttling": _SLOW_DOWN,
    "ThrottlingException": _SLOW_DOWN,
    "TooManyRequests": _SLOW_DOWN,
    "RequestLimitExceeded": _SLOW_DOWN,
    "RequestTimeout": "the bytes of {url} arrived at {endpoint} too slowly",
    "ConditionalRequestConflict": "another conditional write of {url} is under way",
    "OperationAborted": "another operation on {url} is under way",
    "NoSuchUpload": "the upload of {url} was aborted by another process",
    "BadDigest": "bytes of {url} were damaged on the way to {endpoint}, which stored nothing",
    "InvalidDigest": "bytes of {url} were damaged on the way to {endpoint}, which stored nothing",
    "XAmzContentSHA256Mismatch": "bytes of {url} were damaged on the way to {endpoint}, which stored nothing",
    "XAmzContentChecksumMismatch": "bytes of {url} were damaged on the way to {endpoint}, which stored "
    "nothing",
    "IncompleteBody": "bytes of {url} were lost on the way to {endpoint}, which stored nothing",
}
"""Temporary refusals: the request had no effect, and a retry may succeed."""

_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity"}
IS_FOLDER = {"ExistingObjectIsDirectory", "XMinioObjectExistsAsDirectory"}
_FOLDER_CONFLICTS = {"ObjectParentIsFile", "XMinioParentIsObject", *IS_FOLDER}
"""Refusals of services on a file system, where a name cannot be an object and a folder of objects."""
_MISSING = {"NoSuchKey"}
"""Codes about an object and not its bucket. A bare 404 may mean either (``S3Requests.head``)."""
_ABSENT_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.ProfileNotFound,
)
_INVALID_ENDPOINT = re.compile(r"Invalid endpoint: (.*)")
"""What the client says that makes the requests."""
_TOO_LATE = (boto.ReadTimeoutError, TimeoutError)


def code_of(error: BaseException) -> str:
    """The code of an error answer; empty for anything else."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, boto.ClientError) else ""


def status_of(error: BaseException) -> int:
    """The HTTP status of an error answer; 0 for anything else."""
    return (
        int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if isinstance(error, boto.ClientError)
        else 0
    )


def mapped(error: Exception, request: RequestInfo) -> TierlogError:
    """The contract's error for ``error``, which the request raised."""
    if isinstance(error, boto.ClientError):
        return _answered(error, request)

    if isinstance(error, _ABSENT_CREDENTIALS):
        return Unavailable(f"there are no usable credentials for {request.endpoint}: {error}{_CREDENTIALS}")

    # Only without a connection is it certain that nothing was sent. A connection that breaks later may have
    # carried the request.
    if _never_sent(error):
        return Unavailable(
            f"{request.endpoint} cannot be reached: {connection_reason(error)}; check that it runs, and that "
            f"its address is right: `endpoint` of [s3] in the configuration, or AWS_ENDPOINT_URL_S3"
        )

    message = f"no valid answer to {request.operation} on {request.url} from {request.endpoint}"
    if isinstance(error, KeyError):
        return _unsure(f"{message}: it has no {error}", request)

    cause = "none came in time" if isinstance(error, _TOO_LATE) else repr(error)
    return _unsure(
        f"{message}: {cause}", request, hint="check that it runs, and the network between, and try again"
    )


def at_opening(error: Exception, request: RequestInfo) -> TierlogError | None:
    """The error that prevents opening a storage, or None for a temporary one: the service answers, and calls
    are retried."""
    if isinstance(error, ValueError) and (found := _INVALID_ENDPOINT.match(str(error))):
        # Before a request: every error of one would show the password.
        what = (
            "must not contain a user name or a password" if "@" in found[1] else "is not the URL of a service"
        )
        shown = "" if "@" in found[1] else f" {found[1]!r}"
        return ConfigError(
            f"the endpoint of S3{shown} {what}: write https://NAME or http://NAME:PORT, in "
            f"AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the AWS profile, or as `endpoint` of [s3] in the "
            f"configuration"
        )

    code, status = code_of(error), status_of(error)
    if (
        # At the opening an operator is there to correct it. Later the same answer is `Unavailable`: a running
        # store waits for the correction and goes on.
        code in _CONFIGURATION
        or status in {301, 400, 401, 403, 404}
        or isinstance(error, (*_ABSENT_CREDENTIALS, boto.NoRegionError))
    ):
        return ConfigError(str(mapped(error, request)))

    return None if status else mapped(error, request)


def _answered(error: Any, request: RequestInfo) -> TierlogError:
    code, status = code_of(error), status_of(error)
    message = error.response.get("Error", {}).get("Message", "")
    names = attrs.asdict(request) | {"url": request.url}
    if request.name and code in _MISSING:
        return ChunkNotFound(f"there is no chunk {request.name}", chunk=request.name)

    # By the status: services use codes of their own for a condition that does not hold.
    if request.name and status == 412:
        return ChunkExists(f"chunk {request.name} exists already", chunk=request.name)

    if request.name and code in _FOLDER_CONFLICTS:
        if not request.visible:
            return ChunkNotFound(f"there is no chunk {request.name}", chunk=request.name)

        return InvalidArgument(
            f"{request.url} cannot be stored: part of its name is an object, or it is a folder of objects "
            f"({status} {code}: {message})"
        )

    # Before the refusals: a full service is reported as such, whatever else its answer may mean, because
    # waiting does not help.
    if code in _FULL or status == 507:
        return StorageFull(
            f"{request.endpoint} has no room for {request.url}: {message}; make room there, or raise "
            f"the quota"
        )

    # By the code if there is one: the same status may be about the object, the bucket or the request.
    text = _CONFIGURATION.get(code) or _REFUSALS.get(code) or _by_status(status, code)
    if text is not None:
        return Unavailable(f"{text.format(**names)} ({status} {code}: {message})")

    if status == 501:
        return Unsupported(f"{request.endpoint} does not support this use of {request.operation}: {message}")

    if status >= 500:
        shown = str(status) if code == str(status) else f"{status} {code}"
        return _unsure(
            f"{request.endpoint} failed in {request.operation} on {request.url} ({shown}: {message})",
            request,
            hint="try again later; if that lasts, its log has the reason",
        )

    refusal = f"{request.endpoint} refuses {request.operation} on {request.url} ({status} {code}: {message})"
    # The request is wrong for this service, also the next time. The answer to a HEAD has no code, and may be
    # about the credentials.
    if status == 400 and code not in {"", "400"}:
        return Unsupported(f"{refusal}: it would refuse that each time")

    return Unavailable(refusal)


def _by_status(status: int, code: str) -> str | None:
    """For answers without a code: a HEAD has no body to contain one."""
    if status in {404, 409} and code not in {"", str(status)}:
        # What a service has its own name for need be no missing bucket, and no conflict that ends by itself.
        return None

    return {
        301: _CONFIGURATION["PermanentRedirect"],
        401: _CONFIGURATION["AccessDenied"],
        403: _CONFIGURATION["AccessDenied"],
        404: _CONFIGURATION["NoSuchBucket"],
        409: _REFUSALS["OperationAborted"],
        429: _REFUSALS["SlowDown"],
    }.get(status)


def _unsure(message: str, request: RequestInfo, *, hint: str = "") -> TierlogError:
    """``hint``: what to do if it had no effect. Of an unknown outcome the caller knows what to do."""
    if request.visible:
        return OutcomeUnknown(f"{message}; it may have been carried out")

    return Unavailable(f"{message}; {hint}" if hint else message)


def _never_sent(error: Exception) -> bool:
    """Whether the service cannot have received the request: there was no connection."""
    cause = error.kwargs.get("error") if isinstance(error, boto.BotoCoreError) else None
    return isinstance(
        error, boto.ConnectTimeoutError | boto.ProxyConnectionError | boto.SSLError
    ) or isinstance(cause, aiohttp.ClientConnectorError)
