"""Work on a commit and the state before it: in a thread if it takes long, so that other tables go on meanwhile."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cdfd.delta.commit import Commit
from cdfd.delta.snapshot import COMPACT_AT, Snapshot

P = ParamSpec("P")
T = TypeVar("T")

INLINE_ACTIONS = 2000
"""File actions of a commit from which work on it is done in a thread: it takes some 20 microseconds for each of them."""


async def run_on_commit(
    commit: Commit, state: Snapshot | None, work: Callable[P, T], *args: P.args, **options: P.kwargs
) -> T:
    """The result of work on a commit; `state` is the one before, if the work needs it."""
    actions = len(commit.adds) + len(commit.removes) + len(commit.cdcs)
    # A state may be compacted, and a large one needs an index before files are found in it.
    entries = 0 if state is None else len(state.base.adds) + len(state.overlay) + 2 * actions
    if actions < INLINE_ACTIONS and entries < COMPACT_AT:
        return work(*args, **options)
    return await asyncio.to_thread(work, *args, **options)
