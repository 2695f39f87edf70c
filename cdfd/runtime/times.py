"""Durations and moments for people, and moments of HTTP."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration(seconds: float) -> str:
    """A duration in its two largest units: `4.5 s`, `3 min 20 s`, `25 h 0 min`, `12 d 3 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def iso(milliseconds: float) -> str:
    """A time in ms since the Unix epoch as text, in UTC: `2026-01-01T00:00:00.000Z`.

    Raises:
        OverflowError: Python has no times before the year 1 and after 9999.
    """
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_http(text: str) -> datetime | None:
    """The time in a header of HTTP, in UTC. None if it is not a time, or one that Python does not have."""
    # Imported here: it takes 4 ms of a process's start, and local tables need none of it.
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
        # Without a zone it is UTC, too.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, IndexError, OverflowError):
        return None
