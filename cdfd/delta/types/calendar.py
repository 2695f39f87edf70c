"""Dates and timestamps of any year as text, in the proleptic Gregorian calendar that Delta's types are defined in.

Python's `datetime` ends at the year 9999, the types do not; Spark writes such years with a sign (`+10000-01-01`).
"""

import datetime
import re

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_DAY_US = 86_400_000_000

_DATE = r"(?P<year>[+-]?[0-9]{1,7})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
_TIME = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
_ZONE = r"(?P<zone>Z|UTC|GMT|(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2}):?(?P<minutes>[0-9]{2})?)"
_DAY_ONLY = re.compile(_DATE + r"(?:[ T]00:00:00(?:\.0{1,9})?)?")
_INSTANT = re.compile(_DATE + rf"(?:[ T]{_TIME} ?{_ZONE}?)?", re.IGNORECASE)


def parse_date(text: str) -> int:
    """Days since 1970-01-01 of `[+-]year-month-day`, a midnight behind it ignored. ValueError for anything else."""
    match = _DAY_ONLY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return _days(match)


def parse_timestamp(text: str) -> int:
    """Microseconds since the epoch of `date[(space|T)time[zone]]`; without a zone in UTC, further digits are cut off.

    ValueError for anything else; names of regions are not zones here, as what they mean depends on a database.
    """
    match = _instant(text)
    return _microseconds(match) - _offset_us(match)


def parse_wall_clock(text: str) -> int:
    """As `parse_timestamp` for a timestamp without time zone: one other than UTC is a ValueError."""
    match = _instant(text)
    if _offset_us(match):
        raise ValueError(text)
    return _microseconds(match)


def format_date(days: int) -> str:
    """`year-month-day`; a year of more than four digits or before 0 has its sign."""
    cycles, day_of_cycle = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    day = datetime.date.fromordinal(day_of_cycle + 1)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{year:04d}-{day:%m-%d}" if 0 <= year <= 9999 else f"{year:+05d}-{day:%m-%d}"


def format_timestamp(microseconds: int, separator: str = " ") -> str:
    """`date time`, with six digits of a second where it is not a whole one."""
    days, rest = divmod(microseconds, _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return format_date(days) + separator + clock + (f".{fraction:06d}" if fraction else "")


def _instant(text: str) -> re.Match[str]:
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match


def _days(match: re.Match[str]) -> int:
    # The calendar repeats every 400 years: the day is looked up in the cycle that `datetime` has, and moved.
    cycles, year_of_cycle = divmod(int(match["year"]) - 1, _CYCLE_YEARS)
    day = datetime.date(year_of_cycle + 1, int(match["month"]), int(match["day"]))
    return day.toordinal() - _EPOCH + cycles * _CYCLE_DAYS


def _microseconds(match: re.Match[str]) -> int:
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(match.string)
    fraction = int((match["fraction"] or "").ljust(6, "0")[:6])
    return _days(match) * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


def _offset_us(match: re.Match[str]) -> int:
    if match["sign"] is None:
        return 0
    hours, minutes = int(match["hours"]), int(match["minutes"] or 0)
    if hours > 18 or minutes > 59:
        raise ValueError(match.string)
    return (-1 if match["sign"] == "-" else 1) * (hours * 60 + minutes) * 60_000_000
