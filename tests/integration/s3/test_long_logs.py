"""A log of a hundred thousand entries: what listing it costs, in requests and in memory. The server is a stub that has nothing but names."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest

from cdfd.log.log import DeltaLog
from cdfd.storage.location import open_storage
from cdfd.storage.s3.storage import S3Storage
from tests.support.http_server import http_server

ENTRIES = 100_000
CHECKPOINT = ENTRIES - 11
PAGE = 1000


class _Names(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hint = False
    asked: list[str]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.asked.append(parts.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "list-type" in query:
            self._answer(200, _page(query))
        elif self.hint and parts.path.endswith("_last_checkpoint"):
            self._answer(200, b'{"version":%d,"size":1}' % CHECKPOINT)
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Length", str(len(body))),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("ETag", '"x"'),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _page(query: dict[str, str]) -> bytes:
    """Names after that of the token; a checkpoint is listed after its entry's name begins, and before the entry."""
    after = query.get("continuation-token", query.get("start-after", "")).rpartition("/")[2]
    first = int(after[:20]) + (not _is_before(after)) if after else 0
    versions = range(first, min(first + PAGE, ENTRIES))
    names = [f"{version:020d}.json" for version in versions]
    if CHECKPOINT in versions:
        names.insert(CHECKPOINT - first, f"{CHECKPOINT:020d}.checkpoint.parquet")
    rows = "".join(
        f"<Contents><Key>t/_delta_log/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<Size>1000</Size></Contents>"
        for name in names
    )
    more = versions.stop < ENTRIES
    token = f"<NextContinuationToken>t/_delta_log/{names[-1]}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode()


def _is_before(name: str) -> bool:
    """Whether it is a version's number alone, which sorts before all of its files."""
    return len(name) == 20


@pytest.fixture
def names() -> Iterator[type[_Names]]:
    handler = type("Handler", (_Names,), {"asked": []})
    with http_server(handler) as url:
        handler.url = url  # type: ignore[attr-defined]
        yield handler


def store(names: type[_Names]) -> S3Storage:
    options = {
        "endpoint_url": names.url,  # type: ignore[attr-defined]
        "region": "us-east-1",
        "access_key_id": "a",
        "secret_access_key": "b",
    }
    storage = open_storage("s3://lake/t", options)
    assert isinstance(storage, S3Storage)
    return storage


def test_from_the_last_checkpoint_on(names: type[_Names]) -> None:
    names.hint = True
    segment = asyncio.run(DeltaLog(store(names)).segment())
    assert (segment.version, len(segment.commits)) == (ENTRIES - 1, ENTRIES - 1 - CHECKPOINT)
    # The first page of the log is listed while `_last_checkpoint` is read.
    assert sum(path.rstrip("/").endswith("lake") for path in names.asked) == 2


def test_from_zero(names: type[_Names]) -> None:
    """One sweep, page by page; what is after the checkpoint is left of it."""
    segment = asyncio.run(DeltaLog(store(names)).segment())
    assert len(segment.commits) == ENTRIES - 1 - CHECKPOINT
    assert len(names.asked) == 1 + ENTRIES // PAGE


def test_no_more_than_a_page_is_held(names: type[_Names]) -> None:
    async def scenario() -> int:
        count = 0
        async with aclosing(store(names).list("_delta_log/")) as listing:
            async for _ in listing:
                count += 1
                if count == PAGE:  # what is loaded for the first one counts for nothing
                    tracemalloc.start()
                if count == 30 * PAGE:
                    break
        return tracemalloc.get_traced_memory()[1]

    try:
        peak = asyncio.run(scenario())
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20, peak
