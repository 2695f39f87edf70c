"""A bucket, or a folder of one, in a store that speaks the S3 protocol."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdfd.errors import ConfigError, ExistsError, StorageError
from cdfd.runtime.tasks import wait_for_end
from cdfd.storage.base import Stat, check_path, check_prefix, check_range, fetch_each, read_whole
from cdfd.storage.s3.client import S3Client, client_for
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.native import LISTING_PAGE, GetResult, Listed
from cdfd.storage.s3.options import parse
from cdfd.storage.s3.prefetch import Prefetcher, PrefetchRange, result_or_none
from cdfd.storage.s3.ranges import MAX_GET_BYTES, RangeBuffer

_URI = re.compile(r"s3[an]?://([A-Za-z0-9][A-Za-z0-9._-]{1,254})((?:/.*)?)", re.IGNORECASE | re.DOTALL)


class S3Storage:
    """The `Storage` port over a bucket. The protocol itself guarantees that objects appear as a whole.

    Args:
        bucket: its name.
        prefix: the folder in it that is the root; empty for the whole bucket.
        client: sends the requests.
        page: objects of one page of a listing.
    """

    remote = True

    def __init__(self, bucket: str, prefix: str, client: S3Client, *, page: int = LISTING_PAGE) -> None:
        self._bucket = bucket
        self._root = prefix.strip("/")
        self.uri = f"s3://{bucket}/{self._root}".rstrip("/")
        """`s3://bucket/prefix`."""
        self._client = client
        self._page = page
        self._prefetcher = Prefetcher(client)

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object in one GET; see the port."""
        return bytes((await self._read(path, start, length)).data)

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """The beginning of an object and its stat, in one GET; see the port."""
        got = await self._read(path, 0, length)
        return bytes(got.data), _stat(path, got)

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """Several objects, with parallel GETs; see the port."""
        for path in paths:
            self.prefetch(path)
        return await fetch_each(self, paths, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects of a folder, a LIST for each page; see the port.

        Raises:
            StorageError: the store's listings are not in order, as those of an S3 directory bucket.
        """
        check_prefix(prefix)
        request, last = self._request("list", prefix), ""
        async with aclosing(self._list(request, self._key(start_after) if start_after else "")) as entries:
            async for entry in entries:
                path = entry.key[len(self._root) + 1 :] if self._root else entry.key
                if path <= last:
                    hint = "S3 directory buckets do not: use a general purpose bucket"
                    raise StorageError("the store does not list in order of name", path=prefix, hint=hint)
                last = path
                yield Stat(path, entry.size, entry.modified_ms, _identity(entry.etag, entry.modified_ms))

    async def _list(self, request: Request, start_after: str) -> AsyncGenerator[Listed, None]:
        """The objects of a folder after a key: of the native client as far as it lists them, and the others of aiobotocore."""
        run, begun = self._client.loop.run, time.monotonic()
        native = await run(self._client.listing(request, start_after)) if self._page == LISTING_PAGE else None
        after, spent = start_after, time.monotonic() - begun
        while native is not None:
            begun = time.monotonic()
            entries, others = await run(native.page())
            spent = time.monotonic() - begun
            for entry in entries:
                # Some servers include the key that a listing starts after.
                if entry.key > start_after:
                    yield entry
                after = entry.key
            if others is None:
                break
            if not others:
                return
        parameters: dict[str, Any] = {"Prefix": request.key, "Delimiter": "/", "MaxKeys": self._page}
        if after:
            parameters["StartAfter"] = after
        while True:
            page = await run(self._client.page(request, parameters, spent))
            spent = 0.0
            for entry in page.objects:
                # A folder's marker is not one of its objects. Some servers include the key, as above.
                if not entry.key.endswith("/") and entry.key > after:
                    yield entry
            if page.token is None:
                return
            parameters["ContinuationToken"] = page.token

    async def folders(self, folder: str = "") -> Sequence[str]:
        """Common prefixes of a folder, a LIST for each page; see `FolderListing`."""
        check_prefix(folder)
        request = self._request("list", f"{folder}/" if folder else "")
        parameters: dict[str, Any] = {"Prefix": request.key, "Delimiter": "/", "MaxKeys": self._page}
        names: set[str] = set()
        while True:
            page = await self._client.loop.run(self._client.page(request, parameters))
            names |= {prefix[len(request.key) :].rstrip("/") for prefix in page.folders}
            if page.token is None:
                return sorted(names - {""})
            parameters["ContinuationToken"] = page.token

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object with a conditional PUT; see the port. The first one in a bucket verifies that the store supports it.

        Raises:
            StorageError: the store does not support conditional PUTs, or ignores their condition.
        """
        check_path(path)
        request, data, run = self._request("write", path), bytes(data), self._client.loop.run
        await run(self._client.put(request, data, absent=secrets.token_hex(16)))
        if self._bucket not in self._client.conditional_buckets:
            try:
                await run(self._client.put(request, data, absent=secrets.token_hex(16)))
            except ExistsError:
                self._client.conditional_buckets.add(self._bucket)
            else:
                raise StorageError(
                    "the store ignores If-None-Match and overwrites objects",
                    path=path,
                    hint="A ledger in it can lose progress: keep the ledger elsewhere, see docs/s3.md",
                )

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object with one PUT; see the port."""
        check_path(path)
        await self._client.loop.run(self._client.put(self._request("write", path), bytes(data)))

    async def stat(self, path: str) -> Stat:
        """Size and modification time by a HEAD; see the port."""
        check_path(path)
        got = await self._client.loop.run(self._client.head(self._request("stat", path)))
        return _stat(path, got)

    async def delete(self, path: str) -> None:
        """Remove an object; see the port."""
        check_path(path)
        await self._client.loop.run(self._client.delete(self._request("delete", path)))

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Start to fetch an object: all of a small one, the end of a larger one, and with `whole` its beginning too; see the port."""
        self._prefetch(path, size, whole=whole, again=size is not None)

    def _prefetch(self, path: str, size: int | None, *, whole: bool = False, again: bool = False) -> None:
        check_path(path)
        start, length = first_range(size)
        weight = (length or -start) if size is None else min(size, length or -start)
        ranges = [PrefetchRange(start, length, weight)]
        if whole and size is not None and size > WHOLE_OBJECT_BYTES:
            end = size - TAIL_BYTES if size <= ALL_AHEAD_BYTES else LEADING_BYTES
            for at in range(0, end, MAX_GET_BYTES):
                length = min(MAX_GET_BYTES, end - at)
                ranges.append(PrefetchRange(at, length, length))
        self._prefetcher.start(self._request("read", path), ranges, again=again)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access: small objects are fetched whole, others in the ranges that are read. See the port."""
        check_path(path)
        start, length = first_range(size)
        request = self._request("read", path)
        started = self._prefetcher.take(path)
        got = result_or_none(started[0][1]) if started else None
        if got is not None:
            # The prefetch may have used another size.
            start = started[0][0].start
        else:
            got = self._client.loop.submit(self._client.get(request, start, length)).result()
        if len(got.data) == got.size:
            for _, future in started[1:]:
                future.cancel()
            return pa.BufferReader(got.data)
        at = max(0, got.size - len(got.data)) if start < 0 else start
        ranges = RangeBuffer(self._client, request, got, at)
        for ahead, future in started[1:]:
            end = ahead.start + (ahead.length or 0)
            # The ranges were chosen by the size in the log. An object of another size may not have them.
            if end <= at:
                ranges.add_started(ahead.start, end, future)
            else:
                future.cancel()
        return RangeFile(ranges, "r")

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes]:
        """All bytes of objects, with parallel GETs; see `WholeFiles`."""
        for path, size in zip(paths, sizes, strict=True):
            self._prefetch(path, size)
        return [read_whole(self, path, size) for path, size in zip(paths, sizes, strict=True)]

    async def _read(self, path: str, start: int, length: int | None) -> GetResult:
        check_path(path)
        check_range(path, start, length)
        if length == 0:
            return await self._client.loop.run(self._client.head(self._request("read", path)))
        if not start and (started := self._prefetcher.take(path)):
            (_, first), *others = started
            for _, other in others:
                other.cancel()
            if not first.done():
                await wait_for_end(first)
            got = result_or_none(first)
            if got is not None and len(got.data) >= min(got.size, got.size if length is None else length):
                return got if length is None else replace(got, data=got.data[:length])
        return await self._client.loop.run(self._client.get(self._request("read", path), start, length))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def _request(self, doing: str, path: str) -> Request:
        return Request(doing, self._bucket, self._key(path), path)


def _stat(path: str, got: GetResult) -> Stat:
    return Stat(path, got.size, got.modified_ms, _identity(got.etag, got.modified_ms))


def _identity(etag: str, written: int) -> str:
    """The identity of a write. The ETag alone does not suffice, because it is usually a hash of the bytes."""
    tag = etag.strip('"')
    return f"{tag}-{written}" if tag else ""


def open_s3(uri: str, options: Mapping[str, object]) -> S3Storage:
    """The store of `s3://bucket/prefix`, or `s3a://`. It accesses nothing yet.

    The prefix is taken literally: nothing in it is decoded.

    Raises:
        ConfigError: a malformed URI or option. The error contains no secrets.
    """
    matched = _URI.fullmatch(uri)
    if matched is None:
        # The URI may have credentials, so it is not shown.
        hint = (
            "Write s3://bucket/folder; a bucket's name has at least two letters, digits, `.`, `_` or `-`, "
            "and credentials belong in the environment or `storage.s3`"
        )
        raise ConfigError("an S3 URI names no valid bucket", hint=hint)
    prefix = matched[2].strip("/")
    if prefix:
        check_path(prefix)
    return S3Storage(matched[1], prefix, client_for(parse(options)))


WHOLE_OBJECT_BYTES = 4 << 20
"""Bytes up to which an object is read in one GET: a round trip takes as long as some megabytes."""
UNSIZED_BYTES = 1 << 20
"""Bytes of the first GET of an object whose size is not known."""
TAIL_BYTES = 256 << 10
"""Bytes of the first GET of a larger object, from its end: most footers fit."""
ALL_AHEAD_BYTES = 32 << 20
"""Bytes up to which all of an object is fetched before it is opened, if all of it will be read."""
LEADING_BYTES = 8 << 20
"""Bytes to fetch before it is opened from the start of one that is larger: its reader needs all columns at the same time."""


def first_range(size: int | None) -> tuple[int, int | None]:
    """The first range to fetch: start (from the end if negative) and length."""
    if size is None:
        return 0, UNSIZED_BYTES
    return (0, WHOLE_OBJECT_BYTES) if size <= WHOLE_OBJECT_BYTES else (-TAIL_BYTES, None)


class RangeFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """An object that is read in ranges."""

    def __init__(self, ranges: RangeBuffer, mode: str) -> None:
        self._ranges = ranges

    def buffer_at(self, count: int, most: int, at: int) -> memoryview:
        """At least `count` bytes from a position on, and at most `most`: as many as were fetched together, which are not copied then."""
        return memoryview(self._ranges.range(at, at + count, at + most)).cast("B")

    def prefetch_columns(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Announce which columns are read next, each as its row group, start and end in bytes."""
        self._ranges.prefetch_columns(ranges)
