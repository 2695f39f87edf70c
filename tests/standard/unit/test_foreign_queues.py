"""Queues of SQS and Azure at whose address another server answers, such as a proxy with a page of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from cdfd.errors import StorageError
from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.azure import open_azure_queue
from cdfd.storage.queues.base import Queue
from cdfd.storage.queues.sqs import open_sqs
from cdfd.storage.s3.options import parse


@asynccontextmanager
async def server(body: bytes, kind: str) -> AsyncIterator[str]:
    """The address of a server that gives every request the same answer, with the status 200."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_queue(kind: str, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    if kind == "sqs":
        options = {"access_key_id": "x", "secret_access_key": "y", "region": "us-east-1"}
        async with open_sqs(QueueAddress("sqs", None, "events", f"{url}/1/events"), parse(options, {})) as queue:
            yield queue
        return
    account = f"DefaultEndpointsProtocol=http;AccountName=lake;AccountKey=eA==;QueueEndpoint={url}/lake"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
    async with open_azure_queue("lake", "events") as azure_queue:
        yield azure_queue


ANSWERS = [
    ("sqs", b"[]", "application/x-amz-json-1.0"),
    ("sqs", b'{"Messages": [{"Body": "x"}]}', "application/x-amz-json-1.0"),
    ("azure", b"<html><p>wait", "application/xml"),
    ("azure", b"not XML", "application/xml"),
]


@pytest.mark.parametrize(("kind", "body", "content"), ANSWERS)
async def test_foreign_answer_is_an_error_that_is_tried_again(
    kind: str, body: bytes, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(body, content) as url, open_queue(kind, url, monkeypatch) as queue:
        with pytest.raises(StorageError, match="cannot read the queue") as caught:
            await queue.receive()
        assert caught.value.retriable
