"""Jobs in a table's progress record."""

from cdfd.errors import SinkError
from cdfd.sinks.jobs import Job
from cdfd.sinks.kafka.progress.records import Progress

_KINDS = {"id": str, "version": int, "phase": str, "parts": int, "bytes": int, "digest": str, "since": int}


def job_of(progress: Progress | None) -> Job | None:
    """The job in a table's progress record; None if there is none.

    Raises:
        SinkError: the job in the record is invalid.
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
        hint="A newer version of cdfd may have written it: continue with that version",
    )
