"""Translates errors of a store, or of the connection to it, to errors of cdfd: the cause, whether to retry, and a hint."""

from dataclasses import dataclass

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from cdfd.errors import ExistsError, NotFoundError, StorageError

FAILURES = (ClientError, BotoCoreError, aiohttp.ClientError, OSError)
"""All exceptions of a request; asyncio.TimeoutError is an OSError."""

FOREIGN = (ResponseParserError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Exceptions for an answer that is not one of S3. Botocore's parsers raise those after ValueError for XML of another form."""

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
SKEWED = "RequestTimeTooSkewed"

_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound"})
EXISTS = frozenset({"PreconditionFailed", "412"})
_DENIED = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "AccountProblem"})
_WRONG_REGION = frozenset(
    {
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "301",
        "307",
        "TemporaryRedirect",
        "IllegalLocationConstraintException",
    }
)
_RETRIABLE = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "InternalError",
        "RequestTimeout",
        "RequestTimeoutException",
        "ConditionalRequestConflict",
        "OperationAborted",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "BadDigest",
        "IncompleteBody",
    }
)
_ACTIONS = {"read": "s3:GetObject", "stat": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"}
_KEYS = "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile, or the role"
_ENDPOINT = "Check that the endpoint is that of an S3 store, and that no proxy answers in its place"
_CLOCK = "Set the clock of this machine (NTP)"
BAD_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `doing` is read, list, stat, write or delete; `key` is that of the object, or the prefix of a listing."""

    doing: str
    bucket: str
    key: str
    path: str


def translate(error: Exception, request: Request) -> StorageError:
    """The error as one of cdfd's. It contains nothing from the request's headers."""
    if isinstance(error, ClientError):
        code, status = code_of(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _NOT_FOUND or (status == 404 and code != "NoSuchBucket"):
            return no_such_object(request)
        if code in EXISTS and request.doing == "write":
            return ExistsError("there is an object with that name already", path=request.path)
        if code in EXISTS:
            return StorageError("the object was replaced while it was read", path=request.path, retriable=True)
        message = str(error.response.get("Error", {}).get("Message", "")).strip().rstrip(".")
        said = f"{code}: {message[:300]}" if message and message != code else code or f"HTTP status {status}"
        hint, retriable = _advice(error, code, status, request)
        return StorageError(f"cannot {request.doing}: {said}", path=request.path, hint=hint, retriable=retriable)
    reason, hint, retriable = _from_transport(error)
    return StorageError(f"cannot {request.doing}: {reason}", path=request.path, hint=hint, retriable=retriable)


def foreign(error: Exception, request: Request) -> StorageError:
    """The error for an answer that is not one of S3."""
    what = str(error) if isinstance(error, ValueError) else "its XML has another form"
    return StorageError(
        f"cannot {request.doing}: the answer is not one of S3: {what}",
        path=request.path,
        hint=_ENDPOINT,
        retriable=True,
    )


def no_such_object(request: Request) -> NotFoundError:
    """The error for an object that does not exist."""
    return NotFoundError("there is no object with that name", path=request.path)


def code_of(error: Exception) -> str:
    """The error code of S3's response; empty if there was no response."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _advice(error: ClientError, code: str, status: int, request: Request) -> tuple[str | None, bool]:
    if code in _RETRIABLE or (status >= 500 and status != 501) or status == 429:
        # An error of S3 has a code. Botocore has the status for one without, and for a listing that is not XML.
        return f"The store is busy or faulty{f'. {_ENDPOINT}' if code.isdigit() else ''}", True
    if code == SKEWED:
        return _CLOCK, True
    if code in EXPIRED:
        return "The credentials have expired: provide new ones", True
    if code in BAD_KEYS:
        return _KEYS, False
    if code in _WRONG_REGION or status in (301, 307):
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        region = headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region")
        place = f"in {region}" if region else "in another region, or at another endpoint"
        return f"The bucket {request.bucket!r} is {place}: set storage.s3.region, or AWS_REGION", False
    if code == "NoSuchBucket":
        return f"Check the name of the bucket {request.bucket!r} and the endpoint", False
    if code in _DENIED or status == 403:
        bucket = f"arn:aws:s3:::{request.bucket}"
        if request.doing == "list":
            return f"Allow s3:ListBucket on {bucket}", False
        needed = f"Allow {_ACTIONS[request.doing]} on {bucket}/{request.key}"
        if request.doing in ("read", "stat"):
            needed += f", and s3:ListBucket on {bucket}: without it, S3 denies access to objects that do not exist"
        return needed, False
    if code == "NotImplemented" or status == 501:
        return (
            "The store does not implement this; a ledger needs conditional puts (If-None-Match), see docs/s3.md",
            False,
        )
    return None, False


def _from_transport(error: Exception) -> tuple[str, str | None, bool]:
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return (
                "no credentials were found",
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
                False,
            )
        case ProfileNotFound():
            return (
                "the profile is not in the AWS configuration",
                "Check AWS_PROFILE and the AWS configuration files",
                False,
            )
        case CredentialRetrievalError() | MetadataRetrievalError() | TokenRetrievalError():
            return "the provider of the credentials returned none", _KEYS, True
        case SSLError():
            return (
                "the server's certificate was not accepted",
                "Set AWS_CA_BUNDLE to the file of its certificate authority",
                False,
            )
        case ConnectTimeoutError() | EndpointConnectionError():
            return (
                "the endpoint cannot be reached, or closes the connection",
                "Check the endpoint, its name and the network",
                True,
            )
        case ReadTimeoutError() | TimeoutError():
            return "the response stalled", "Check the network", True
        case IncompleteReadError():
            return "the response ended too early", "Check the network", True
        case HTTPClientError() | aiohttp.ClientError() | OSError():
            return "the connection was lost", "Check the network", True
        case _:
            return f"{type(error).__name__}", "See the client's configuration", False
