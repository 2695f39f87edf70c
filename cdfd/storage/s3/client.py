"""A client of one S3-protocol endpoint: requests with retries up to a deadline, in the process's request loop.

This module decides what to retry, because botocore does not detect a body that stalls or ends early, and does not report the last error at
the deadline. If a store throttles a request, that request waits for longer. Botocore's adaptive mode would let all requests of the client
wait: S3 throttles a prefix, and a throttled table must not slow down the others in its bucket, or the ledger.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import pyarrow as pa
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.exceptions import ClientError, NoCredentialsError

from cdfd.errors import NotFoundError, StorageError
from cdfd.storage.s3 import answers
from cdfd.storage.s3.clock import clock_of
from cdfd.storage.s3.errors import (
    BAD_KEYS,
    EXISTS,
    EXPIRED,
    FAILURES,
    FOREIGN,
    SKEWED,
    Request,
    code_of,
    foreign,
    translate,
)
from cdfd.storage.s3.loop import RequestLoop, request_loop
from cdfd.storage.s3.models import CachedLoader
from cdfd.storage.s3.native import (
    CONNECTIONS,
    ChainCredentials,
    GetResult,
    NativeListing,
    NativeReader,
    SourcedCredentials,
    reader_for,
    region_of,
    wait_for_threads,
)
from cdfd.storage.s3.options import S3Options

T = TypeVar("T")

FIRST_DELAY, MAX_DELAY = 0.05, 5.0
"""Seconds to wait before the second attempt, at most, and before any later one."""
RENEW_SECONDS = 5.0
"""Seconds between two attempts to renew expired credentials, at least."""
BUFFERED_BODY_BYTES, MAX_BODY_BYTES = 128 << 10, 64 << 20
"""Bytes from which a body is read into a buffer of its size. For a request without a length, also the maximum for that."""
_NAMELESS = frozenset({"400", "403"})
"""Codes of errors of a HEAD. Botocore has only the status, and the store has several codes of the same status."""
WARN_AFTER, WARN_SECONDS = 3, 30.0
"""Failed attempts of a request before a warning, and seconds between two warnings, at least."""

logger = logging.getLogger("cdfd.storage")

# Botocore logs signed requests, with session tokens, at DEBUG. So DEBUG on the root logger does not apply to it; set botocore's own level.
for _name in ("botocore", "aiobotocore"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


class S3Client:
    """One client for everything with the same options. All coroutines run in `loop`."""

    def __init__(self, options: S3Options, loop: RequestLoop) -> None:
        self.options = options
        self.loop = loop
        self._session: AioSession | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._native: asyncio.Task[NativeReader | None] | None = None
        self._open = AsyncExitStack()
        source = options.source
        self._credentials = ChainCredentials(options.profile) if source is None else SourcedCredentials(source)
        self._clock = clock_of(options.endpoint_url)
        self._renewed_at = -RENEW_SECONDS
        self._warned_at = -WARN_SECONDS
        self.readers: WeakSet[object] = WeakSet()
        """Large objects that are open."""
        self.conditional_buckets: set[str] = set()
        """Buckets whose conditional PUT was verified."""
        loop.close_with(self, self._open.aclose)
        loop.on_close(wait_for_threads)

    async def get(self, request: Request, start: int, length: int | None, *, etag: str | None = None) -> GetResult:
        """Bytes of an object, as in `Storage.read`; a negative `start` counts from the end. With `etag`, only of that write.

        The first attempt is that of the native client, if the settings allow it.
        """
        begun = time.monotonic()
        native = await self.native()
        if native is not None and (got := await native.get(request, start, length, etag)) is not None:
            return got
        parameters = {"Range": _range(start, length)} if start or length is not None else {}
        if etag is not None:
            parameters["IfMatch"] = etag

        async def attempt(client: Any) -> GetResult:
            try:
                response = await client.get_object(**self._object_parameters(request), **parameters)
            except ClientError as error:
                if code_of(error) not in ("InvalidRange", "416"):
                    raise
                return answers.head_of(await self._headers(client, request))
            return answers.part_of(response, await _body(response, length), start, length)

        return await self._retry(request, attempt, time.monotonic() - begun)

    async def listing(self, request: Request, start_after: str) -> NativeListing | None:
        """A listing of the native client; None if `page` has to be asked. See `NativeReader.listing`."""
        native = await self.native()
        return None if native is None else await native.listing(request, start_after)

    async def head(self, request: Request) -> GetResult:
        """Size, modification time and ETag of an object."""
        begun = time.monotonic()
        native = await self.native()
        if native is not None and (got := await native.head(request)) is not None:
            return got

        async def attempt(client: Any) -> GetResult:
            return answers.head_of(await self._headers(client, request))

        return await self._retry(request, attempt, time.monotonic() - begun)

    async def put(self, request: Request, data: bytes, *, absent: str | None = None) -> None:
        """Write an object; with `absent`, only if it does not exist.

        The text `absent` is stored with the object. If a response is lost, the request is retried, also by the HTTP client. The retry then
        fails because the object exists. The writer recognises its own object by that text.
        """
        options = self.options
        encryption = {
            "ServerSideEncryption": options.encryption or ("aws:kms" if options.kms_key_id else None),
            "SSEKMSKeyId": options.kms_key_id,
            "BucketKeyEnabled": options.bucket_key or None,
        }
        parameters: dict[str, Any] = {key: value for key, value in encryption.items() if value is not None}
        parameters["Body"] = data
        if absent is not None:
            parameters |= {"IfNoneMatch": "*", "Metadata": {_WRITER: absent}}

        async def attempt(client: Any) -> None:
            try:
                answers.field(await client.put_object(**self._object_parameters(request), **parameters), "ETag")
            except ClientError as error:
                if absent is None or code_of(error) not in EXISTS:
                    raise
                response = await self._headers(client, request)
                if response.get("Metadata", {}).get(_WRITER) != absent:
                    raise

        await self._retry(request, attempt)

    async def delete(self, request: Request) -> None:
        """Remove an object, if it exists.

        S3 does not say whether it did. Other stores can have an error for an object that another request removes at the same time.
        """
        with contextlib.suppress(NotFoundError):
            await self._retry(request, lambda client: client.delete_object(**self._object_parameters(request)))

    async def page(self, request: Request, parameters: dict[str, Any], spent: float = 0.0) -> answers.Page:
        """One page of a listing, for which `spent` seconds were needed before."""
        named = self._object_parameters(request)
        del named["Key"]

        async def attempt(client: Any) -> answers.Page:
            return answers.page_of(await client.list_objects_v2(**named, **parameters), request.key)

        return await self._retry(request, attempt, spent)

    async def _headers(self, client: Any, request: Request) -> dict[str, Any]:
        """The answer to a HEAD.

        It has no body that names an error: expired credentials and a wrong clock are only a status. So a GET asks for the code.
        """
        named = self._object_parameters(request)
        try:
            headers: dict[str, Any] = await client.head_object(**named)
        except ClientError as error:
            if code_of(error) in _NAMELESS:
                response = await client.get_object(**named, Range="bytes=0-0")
                response["Body"].close()
            raise
        return headers

    def _object_parameters(self, request: Request) -> dict[str, Any]:
        named: dict[str, Any] = {"Bucket": request.bucket, "Key": request.key}
        if self.options.request_payer:
            named["RequestPayer"] = "requester"
        return named

    async def _retry(self, request: Request, attempt: Callable[[Any], Awaitable[T]], spent: float = 0.0) -> T:
        """The result of `attempt`. Transient errors are retried until the deadline, of which `spent` seconds are over."""
        last: StorageError | None = None
        delay, failed = FIRST_DELAY, 0
        try:
            async with asyncio.timeout(self.options.deadline - spent):
                while True:
                    offset, renewed_at = self._clock.offset, self._renewed_at
                    try:
                        return await attempt(await self._client())
                    except FAILURES as error:
                        last = self._classify(error, request, offset, renewed_at)
                        if not last.retriable or code_of(error) in EXISTS:
                            raise last from None
                    except FOREIGN as error:
                        raise self._redacted(foreign(error, request)) from None
                    failed += 1
                    if failed == WARN_AFTER:
                        # Log why requests take so long, once for all requests that wait.
                        now = asyncio.get_running_loop().time()
                        if now - self._warned_at >= WARN_SECONDS:
                            self._warned_at = now
                            logger.warning("%s; cdfd retries for up to %g s", last, self.options.deadline)
                    await asyncio.sleep(delay * (0.5 + random.random() / 2))
                    delay = min(2 * delay, MAX_DELAY)
        except TimeoutError:
            what = f"cannot {request.doing}: no answer" if last is None else last.what
            hint = "Check the network and the endpoint" if last is None else last.hint
            raise StorageError(
                f"{what}; gave up after {self.options.deadline:g} seconds", path=request.path, hint=hint, retriable=True
            ) from None

    def _classify(self, error: Exception, request: Request, offset: timedelta, renewed_at: float) -> StorageError:
        """The error as one of cdfd's. Expired or rotated credentials and a wrong clock are corrected for the next attempt.

        Args:
            error: of the attempt.
            request: that was attempted.
            offset: that of the clock before the attempt.
            renewed_at: when credentials were last looked for before the attempt.
        """
        problem = self._redacted(translate(error, request))
        if code_of(error) == SKEWED and isinstance(error, ClientError):
            problem.retriable = self._clock.adjust(error, offset)
        elif self.options.access_key_id is not None:
            problem.retriable &= code_of(error) not in EXPIRED  # those of the options cannot be renewed
        elif code_of(error) in EXPIRED:
            self._renew(renewed_at)
        elif code_of(error) in BAD_KEYS or isinstance(error, NoCredentialsError):
            # A rotation deletes the earlier keys, the first ones may come late, and some stores forget keys that have expired.
            problem.retriable = self._renew(renewed_at)
        if self.options.source is not None and code_of(error) in EXPIRED | BAD_KEYS:
            problem.hint = "The store refuses the catalog's credentials: check the storage credential of the table's location there"
        return problem

    def _renew(self, renewed_at: float) -> bool:
        """Let the next request look for newer credentials. Returns whether that was done since a time, or could be done now."""
        now = asyncio.get_running_loop().time()
        if self._renewed_at == renewed_at and now - renewed_at >= RENEW_SECONDS:
            self._renewed_at = now
            self._credentials.expire()
        return self._renewed_at != renewed_at

    def _redacted(self, problem: StorageError) -> StorageError:
        problem.what = self.options.redact(problem.what)
        for secret in (self._credentials.frozen or ())[:3]:
            problem.what = problem.what.replace(secret, "***") if secret else problem.what
        problem.args = (problem.what,)
        return problem

    async def native(self) -> NativeReader | None:
        """The native client; None if the settings need botocore, or botocore finds no credentials."""
        try:
            if self._native is None:
                reader = reader_for(self._botocore_session(), self.options, self._client)
                self._native = asyncio.get_running_loop().create_task(reader)
            async with asyncio.timeout(self.options.deadline):
                return await asyncio.shield(self._native)
        except FAILURES:
            # The same is about to happen to botocore, whose errors are translated. Its configuration may be another one next time.
            self._native = self._session = None
            return None

    async def _client(self) -> Any:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_client())
        try:
            return await asyncio.shield(self._opening)
        except FAILURES:
            self._opening = self._session = None
            raise

    async def _open_client(self) -> Any:
        options, session = self.options, self._botocore_session()
        # Virtual-hosted buckets need a DNS entry each, which few custom endpoints have.
        style = "auto" if options.endpoint_url is None else "path"
        if options.path_style is not None:
            style = "path" if options.path_style else "virtual"
        config = AioConfig(
            connect_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": style},
            # Not every S3-compatible store supports the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=UNSIGNED if options.anonymous else None,
            # A tenth of botocore's time per request is parameter validation and building a long user agent.
            user_agent="cdfd",
            parameter_validation=False,
        )
        client = await self._open.enter_async_context(
            session.create_client(
                "s3",
                region_name=region_of(session, options),
                endpoint_url=options.endpoint_url,
                # Without TLS there are no certificates. Reading a file of them takes as long as creating the client.
                verify=False if (options.endpoint_url or "").startswith("http://") else None,
                aws_access_key_id=options.access_key_id,
                aws_secret_access_key=options.secret_access_key,
                aws_session_token=options.session_token,
                config=config,
            )
        )
        self._clock.sign(client)
        return client

    def _botocore_session(self) -> AioSession:
        if self._session is None:
            self._session = AioSession(profile=self.options.profile)
            # The model of S3's API is a large file. All clients share one that was read.
            self._session.register_component("data_loader", _models)
            self._session._credentials = self._credentials
            self._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=answers.time_of)
        return self._session


_WRITER = "cdfd-writer"
_models = CachedLoader()


def _range(start: int, length: int | None) -> str:
    if start < 0:
        return f"bytes={start}"
    # No object is as long, and some servers cannot parse larger integers.
    start = min(start, 1 << 62)
    return f"bytes={start}-" if length is None else f"bytes={start}-{min(start + length, 1 << 62) - 1}"


async def _body(response: dict[str, Any], length: int | None) -> bytes | pa.Buffer:
    size = response.get("ContentLength", 0)
    async with response["Body"] as body:
        if not BUFFERED_BODY_BYTES <= size <= (length or MAX_BODY_BYTES):
            return bytes(await body.read())
        # A body of at most the buffer's size. Arrow reuses its memory; new `bytes` would cost as much as the copy into them.
        buffer = pa.allocate_buffer(size)
        with memoryview(buffer).cast("B") as view:
            at = 0
            while read := await body.readinto(view[at:]):
                at += read
        # Read the body's end, so that the connection can be reused. If the body ended too early, this raises the error.
        await body.read()
        # Bytes that were not written are those that the memory held before.
        return buffer.slice(0, at)


RECENT_CLIENTS = 16
"""Clients that are kept although no store uses them. A catalog may have credentials for each table, which then has a client of its own."""
_clients: WeakValueDictionary[tuple[S3Options, int], S3Client] = WeakValueDictionary()
_recent: deque[S3Client] = deque(maxlen=RECENT_CLIENTS)
_lock = threading.Lock()


def client_for(options: S3Options) -> S3Client:
    """The process's client for these options. It is closed some time after its last user is gone."""
    loop = request_loop()
    with _lock:
        key = options, id(loop)
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = S3Client(options, loop)
        if client in _recent:
            _recent.remove(client)
        _recent.append(client)
        return client
