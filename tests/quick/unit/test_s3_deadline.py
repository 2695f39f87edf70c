"""The deadline of a request to S3, with all its attempts."""

import asyncio
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from cdfd.errors import StorageError
from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.loop import RequestLoop
from cdfd.storage.s3.options import S3Options

READ = Request("read", "lake", "orders/x", "x")


async def test_a_deadline_holds_if_an_attempt_loses_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As botocore's limit of the rate does, if the rate changes at that moment: without it, attempts went on as long as they failed."""
    client, attempts = S3Client(S3Options(deadline=0.1), RequestLoop()), 0

    async def of_the_test() -> object:
        return client

    async def attempt(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if attempts > 1:
                raise
        raise EndpointConnectionError(endpoint_url="http://lake")

    monkeypatch.setattr(client, "_client", of_the_test)
    async with asyncio.timeout(20):
        with pytest.raises(
            StorageError, match=r"the endpoint cannot be reached.*; gave up after 0\.1 seconds"
        ) as caught:
            await client._retry(READ, attempt)
    assert (attempts, caught.value.retriable, caught.value.path) == (1, True, "x")
