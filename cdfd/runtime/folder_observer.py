"""Watchdog's observer of folders, with the events that cdfd needs.

This module has an event mask of its own. Watchdog's masks include IN_MOVED_FROM. Watchdog delays such an event, and all later ones, by 0.5 s,
to pair it with the IN_MOVED_TO of the same rename. So a temporary file that leaves the folder would delay the next commit by 0.5 s.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import Mask

if sys.platform == "linux":
    from watchdog.observers.inotify import InotifyEmitter, InotifyObserver
    from watchdog.observers.inotify_c import InotifyConstants

    # Deletions matter because a table that is replaced loses entries. A file that is written in place is complete once it is closed. A linked
    # file is created and never closed.
    _MASK = cast(
        "Mask",
        InotifyConstants.IN_CREATE
        | InotifyConstants.IN_MOVED_TO
        | InotifyConstants.IN_CLOSE_WRITE
        | InotifyConstants.IN_DELETE
        | InotifyConstants.IN_DELETE_SELF,
    )

    # An event of a folder that is no longer watched is not an error.
    logging.getLogger(InotifyEmitter.__module__).addFilter(
        lambda record: "thread is inactive" not in record.getMessage()
    )

    class _Emitter(InotifyEmitter):
        def get_event_mask_from_filter(self) -> Mask:
            return _MASK

    class Observer(InotifyObserver):
        """Watches folders with that mask."""

        def __init__(self) -> None:
            super().__init__()
            self._emitter_class = _Emitter

else:
    from watchdog.observers import Observer as Observer

EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileClosedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]
"""Without "the folder was modified", which comes with each event on a file, and would be handed from thread to thread for nothing."""


class Handler(FileSystemEventHandler):
    """Hands a folder's events over: the path, and whether a folder was deleted there. In the observer's thread."""

    def __init__(self, handle: Callable[[str, bool], None]) -> None:
        self._handle = handle

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Hand over an event."""
        self._handle(os.fsdecode(event.dest_path or event.src_path), isinstance(event, DirDeletedEvent))
