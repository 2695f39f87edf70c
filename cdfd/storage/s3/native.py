"""GETs, HEADs and LISTs by obstore, Rust's object_store: it takes a fraction of botocore's time per request, and none of it under the GIL.

It is a fast path only. If it fails, or cannot do what the settings ask for, the caller sends the request with aiobotocore, whose error says
why. Credentials, region and endpoint are those that botocore finds. With an endpoint of the settings, it finds them without a client, whose
creation takes as long as reading a small table.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore
import pyarrow as pa
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.exceptions import NoCredentialsError
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import MemoryStore, S3Store

from cdfd.storage.credentials import Keys, KeySource
from cdfd.storage.s3.clock import clock_of
from cdfd.storage.s3.errors import FAILURES, Request, no_such_object
from cdfd.storage.s3.options import S3Options

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Credential

CONNECTIONS = 64
LISTING_PAGE = 1000
"""Objects of one page of a listing: as many as S3 has in a response."""
PAUSE_SECONDS = 10.0
"""Seconds without a native request after one that failed: botocore's errors apply, and no request is sent twice."""

_OTHER_HOST = ("use_fips_endpoint", "use_dualstack_endpoint")
"""Variables with which botocore finds a host in a way of its own. With `ca_bundle`, it trusts the certificates of that file only, to which
obstore would add those of the system."""

_forked = False
_used = False


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object, with the object's size, modification time (ms since the Unix epoch) and ETag."""

    data: bytes | pa.Buffer
    size: int
    modified_ms: int
    etag: str


class Listed(NamedTuple):
    """An object of a listing: its key, size in bytes, modification time (ms since the Unix epoch) and ETag."""

    key: str
    size: int
    modified_ms: int
    etag: str


class SourcedCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore has no types
    """Credentials that are those of a source at any time."""

    def __init__(self, source: KeySource) -> None:
        super().__init__("", "", None, "catalog")
        self._source = source
        self._last: Keys | None = None
        self.frozen: Any = None
        """The keys of the last request, as botocore has them; None before the first one."""

    async def get_frozen_credentials(self) -> Any:
        """The keys for a request now, as botocore has them.

        Raises:
            StorageError: the source has none.
        """
        keys = await self._source.keys()
        if keys != self._last:
            fixed = AioCredentials(keys.access_key, keys.secret_key, keys.token, "catalog")
            self._last, self.frozen = keys, await fixed.get_frozen_credentials()
        return self.frozen

    def expire(self) -> None:
        """The store refused the last keys."""
        if self._last is not None:
            self._source.expire(self._last)


class ChainCredentials(AioCredentials):  # type: ignore[misc]  # as above
    """Credentials that botocore finds in the environment. It looks for them again after `expire`, for the same clients."""

    def __init__(self, profile: str | None) -> None:
        super().__init__("", "", None, "chain")
        self._profile = profile
        self._lookup: asyncio.Task[Any] | None = None
        self.frozen: Any = None
        """As above."""

    async def get_frozen_credentials(self) -> Any:
        """The keys for a request now, as botocore has them.

        Raises:
            BotoCoreError: there are none.
        """
        if self._lookup is None:
            self._lookup = asyncio.get_running_loop().create_task(self._look_up())
        try:
            credentials = await asyncio.shield(self._lookup)
        except FAILURES:
            self._lookup = None
            raise
        self.frozen = await credentials.get_frozen_credentials()
        return self.frozen

    async def _look_up(self) -> Any:
        credentials = await AioSession(profile=self._profile).get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return credentials

    def expire(self) -> None:
        """The store refused them."""
        self._lookup = None


class NativeReader:
    """Reads objects of one client. It belongs to the client's event loop.

    Args:
        endpoint: URL of the service, without a bucket.
        region: to sign for.
        options: of the store.
        credentials: botocore's, which renew themselves; None for unsigned requests.

    Attributes:
        pages: of listings, which are being read.
    """

    def __init__(self, endpoint: str, region: str, options: S3Options, credentials: Any) -> None:
        self._endpoint = endpoint
        self._region = region
        self._options = options
        self._credentials = credentials
        self._clock = clock_of(options.endpoint_url)
        self._keys: Any = None
        self._stores: dict[str, S3Store] = {}
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._paused_until = 0.0
        self.pages = set[asyncio.Future[Any]]()

    async def get(self, request: Request, start: int, length: int | None, etag: str | None) -> GetResult | None:
        """The result of `S3Client.get`; None if it is not known, and aiobotocore has to ask.

        Raises:
            NotFoundError: there is no object with that name.
        """
        options: GetOptions = {} if etag is None else {"if_match": etag}
        if start or length is not None:
            options["range"] = _range(start, length)
        async with self._connection(request.key) as is_usable:
            if not is_usable:
                return None
            try:
                store = await self._store(request.bucket)
                result = await obstore.get_async(store, request.key, options=options)
                return GetResult(pa.py_buffer(await result.bytes_async()), *_object_facts(result.meta))
            except FileNotFoundError as error:
                # There may be no bucket, or another server.
                if "<Code>NoSuchKey</Code>" in str(error):
                    raise no_such_object(request) from None
                return None
            except PreconditionError:
                return None
            except (BaseError, ValueError, *FAILURES) as error:
                # There is no range in an empty object, so that says nothing about the store.
                if "status code: 416" not in str(error):
                    self.pause()
                return None

    async def head(self, request: Request) -> GetResult | None:
        """Size, modification time and ETag; None if aiobotocore has to ask: a HEAD that fails does not say why."""
        async with self._connection(request.key) as is_usable:
            if not is_usable:
                return None
            try:
                store = await self._store(request.bucket)
                return GetResult(b"", *_object_facts(await obstore.head_async(store, request.key)))
            except FileNotFoundError:
                return None
            except (BaseError, ValueError, *FAILURES):
                self.pause()
                return None

    async def listing(self, request: Request, start_after: str) -> NativeListing | None:
        """The objects of a folder, `request.key`, that come after the key `start_after`; None if aiobotocore has to list them."""
        folder = request.key.removesuffix("/")
        if folder == request.key or not self._is_usable(folder) or not self._is_usable(start_after or folder):
            return None
        try:
            store = await self._store(request.bucket)
            pages = obstore.list(store, folder, offset=start_after or None, chunk_size=LISTING_PAGE)
        except (BaseError, ValueError, *FAILURES):
            return None
        return NativeListing(self, pages, request.key)

    def pause(self) -> None:
        """Send no request for a while."""
        self._paused_until = time.monotonic() + PAUSE_SECONDS

    @asynccontextmanager
    async def _connection(self, key: str) -> AsyncIterator[bool]:
        """Wait for one of the connections, and hold it during the block. Whether it can be used: if not, aiobotocore has to ask."""
        if not self._is_usable(key):
            yield False
            return
        try:
            # aiobotocore has the other half of the time.
            async with asyncio.timeout(self._options.deadline / 2):
                await self._room.acquire()
        except TimeoutError:
            yield False
            return
        try:
            # The requests before may have failed meanwhile.
            yield self._is_usable(key)
        finally:
            self._room.release()

    def _is_usable(self, key: str) -> bool:
        # The threads of the native client do not survive a fork: a child would wait for them forever.
        if _forked or self._clock.offset or time.monotonic() < self._paused_until:
            return False
        # object_store refuses or changes names with such segments.
        return not any(segment in ("", ".", "..") for segment in key.split("/"))

    async def _store(self, bucket: str) -> S3Store:
        global _used
        if self._credentials is not None:
            keys = await self._credentials.get_frozen_credentials()
            if keys != self._keys:
                self._keys, self._stores = keys, {}
        if bucket not in self._stores:
            self._stores[bucket] = self._open(bucket)
            _used = True
        return self._stores[bucket]

    def _open(self, bucket: str) -> S3Store:
        options, keys = self._options, self._keys
        scheme, _, host = self._endpoint.partition("://")
        # As for botocore, the bucket is a part of the host's name. A certificate for *.s3.amazonaws.com does not cover further dots.
        virtual = options.endpoint_url is None and "." not in bucket
        if options.path_style is not None:
            virtual = not options.path_style
        endpoint = f"{scheme}://{bucket}.{host}" if virtual else self._endpoint
        # obstore also reads variables of the environment. These arguments override them.
        return S3Store(
            bucket,
            region=self._region,
            endpoint=endpoint,
            aws_endpoint_url_s3=endpoint,
            virtual_hosted_style_request=virtual,
            skip_signature=keys is None,
            request_payer=options.request_payer,
            s3_express=False,
            credential_provider=None if keys is None else partial(_credential, keys),
            client_options={
                "allow_http": scheme == "http",
                # Without TLS there are no certificates. Reading those of the system takes longer than a small table.
                "allow_invalid_certificates": scheme == "http",
                "connect_timeout": timedelta(seconds=options.connect_timeout),
                "read_timeout": timedelta(seconds=options.read_timeout),
                "timeout": timedelta(seconds=options.deadline),
                "user_agent": "cdfd",
            },
            retry_config={"max_retries": 0},
        )


def modified_ms(moment: datetime) -> int:
    """A time in ms since the Unix epoch, of whole seconds, as in HTTP headers. Listings of some stores are more precise, and both must give
    the same time.
    """
    return int(moment.timestamp()) * 1000


def _facts(meta: ObjectMeta) -> tuple[int, int, str]:
    """Size, modification time and ETag."""
    return meta["size"], modified_ms(meta["last_modified"]), meta["e_tag"] or ""


def _object_facts(meta: ObjectMeta) -> tuple[int, int, str]:
    """The same from the headers of an object.

    Raises:
        ValueError: the answer has not all of them, so it may not be that of S3. obstore has 1970 as the time then.
    """
    size, modified, etag = _facts(meta)
    if not modified or not etag:
        raise ValueError("the answer has no time or ETag")
    return size, modified, etag


@dataclass(eq=False)
class NativeListing:
    """A listing that is under way. It belongs to the client's event loop.

    obstore lists what is in a folder's folders too. So where the first of them comes, or something that may be the marker of one, the rest
    is left to aiobotocore.
    """

    reader: NativeReader
    pages: Any
    folder: str

    async def page(self) -> tuple[Sequence[Listed], bool | None]:
        """The next objects; and whether others follow them, None if aiobotocore has to list those."""
        # If a listing is dropped between its request and the answer, obstore's pool of connections panics, then and in all later requests.
        # So a page that is not awaited any more is read nevertheless.
        page = asyncio.ensure_future(self._read_page())
        self.reader.pages.add(page)
        page.add_done_callback(self.reader.pages.discard)
        return await asyncio.shield(page)

    async def _read_page(self) -> tuple[Sequence[Listed], bool | None]:
        listed: list[Listed] = []
        try:
            page = await anext(self.pages, None)
            if page is None:
                return (), False
            for each in page:
                key = each["path"]
                if not each["size"] or not key.startswith(self.folder) or "/" in key[len(self.folder) :]:
                    return listed, None
                listed.append(Listed(key, *_facts(each)))
        except (BaseError, ValueError, *FAILURES):
            self.reader.pause()
            return listed, None
        return listed, True


def _credential(keys: Any) -> S3Credential:
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token,
        "expires_at": None,
    }


async def reader_for(session: Any, options: S3Options, client: Callable[[], Awaitable[Any]]) -> NativeReader | None:
    """A reader with what botocore finds; None if the settings need botocore itself.

    Args:
        session: of botocore.
        options: of the store.
        client: opens a client of that session, if it is not open. Its host and region count if the options have no endpoint.
    """
    if options.endpoint_url is None:
        meta = (await client()).meta
        endpoint, region = meta.endpoint_url, meta.region_name
    else:
        endpoint, region = options.endpoint_url, region_of(session, options)
    names = _OTHER_HOST if endpoint.startswith("http://") else (*_OTHER_HOST, "ca_bundle")
    if urllib.request.getproxies() or any(session.get_config_variable(name) for name in names):
        return None
    credentials = None
    if options.anonymous:
        pass
    elif options.access_key_id is not None:
        credentials = AioCredentials(options.access_key_id, options.secret_access_key, options.session_token)
    else:
        credentials = await session.get_credentials()
    return NativeReader(endpoint, region, options, credentials)


def region_of(session: Any, options: S3Options) -> str:
    """The region to sign for: S3's first one, if none is set."""
    return options.region or session.get_config_variable("region") or "us-east-1"


async def wait_for_threads() -> None:
    """Wait until no thread of obstore is in Python, or about to be. Call it before the interpreter ends.

    Before Python 3.14, `pthread_exit` ends a thread that wants the GIL while the interpreter ends. Within Rust's frames, that aborts the
    process, without a message, although all of its work is done.
    """
    if not _used or _forked:
        return
    # A cancelled request wants the GIL once more. Threads take requests in order, so they have taken all of those before this one.
    await obstore.put_async(MemoryStore(), "last", b"")
    # A thread wakes the loop with a result, and then wants the GIL again.
    calls = {asyncio.BaseEventLoop.call_soon_threadsafe.__code__, _credential.__code__}
    while any(list(walk_stack(frame))[-1][0].f_code in calls for frame in sys._current_frames().values()):
        await asyncio.sleep(0.001)


def _range(start: int, length: int | None) -> Any:
    if start < 0:
        return {"suffix": -start}
    # No object is as long.
    return {"offset": start} if length is None else (start, min(start + length, 1 << 62))


def _forget() -> None:
    global _forked
    _forked = _forked or _used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
