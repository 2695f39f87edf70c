"""Functions that must not run in the thread of the event loop."""

import threading
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
