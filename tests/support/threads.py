"""Work that must not keep the event loop busy."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest


def observe_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """For each call of a function from now on, whether it runs in a thread of its own."""
    function = getattr(module, name)
    threads: list[bool] = []

    def observed(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return function(*args, **options)

    monkeypatch.setattr(module, name, observed)
    return threads


async def turns_during(work: Coroutine[Any, Any, object]) -> int:
    """How often another task has its turn."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await work
    task.cancel()
    return turns
