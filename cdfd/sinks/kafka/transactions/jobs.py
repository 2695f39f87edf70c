"""Jobs as a table's own progress record has them."""

from __future__ import annotations

from cdfd.errors import SinkError
from cdfd.sinks.base import Job
from cdfd.sinks.kafka.progress.records import Progress

_KINDS = {"id": str, "version": int, "phase": str, "parts": int, "bytes": int, "digest": str, "since": int}


def job_of(progress: Progress | None) -> Job | None:
    """The job of a table's own progress record; None where there is none.

    Raises:
        SinkError: what is there says something else.
    """
    if progress is None or not progress.job:
        return None
    found, position = dict(progress.job), progress.position
    known = all(type(found.get(name)) is kind for name, kind in _KINDS.items())
    if known and (found["version"], found["phase"]) == (position.version, position.phase):
        parts, size, since = (int(found[name]) for name in ("parts", "bytes", "since"))
        return Job(str(found["id"]), position.version, position.phase, parts, size, str(found["digest"]), since)
    raise SinkError(
        "the table's position is part of a job that this version of cdfd does not know",
        version=position.version,
        hint="Did a newer version of cdfd write it? Go on with that one",
    )
