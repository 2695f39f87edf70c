"""Background tasks of a daemon."""

import asyncio
import logging

import pytest

from cdfd.runtime.tasks import background


async def test_an_unexpected_end_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("no such metric")

    async with background("summary", fails()):
        await asyncio.sleep(0.01)
        [line] = caplog.records
        assert (line.levelno, line.getMessage()) == (logging.ERROR, "the task 'summary' ended unexpectedly")
        assert "no such metric" in caplog.text


async def test_it_ends_with_the_block(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with background("summary", forever()):
        await asyncio.sleep(0)
    assert ended.is_set()
    assert not caplog.records
