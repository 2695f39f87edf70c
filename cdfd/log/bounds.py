"""Parses the start and the end of a range of versions, as users write them. Pure: relative bounds stay relative until a log resolves them."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import SupportsIndex, TypeAlias

from cdfd.errors import ConfigError

Start: TypeAlias = SupportsIndex | str | date | Mapping[str, "SupportsIndex | str | date"]
"""A bound as users give it: a whole number, text, a date or a datetime. `{"after": bound}` excludes the bound."""


@dataclass(frozen=True, slots=True)
class After:
    """The versions after a version or a time, without that version or time."""

    bound: int | datetime | timedelta


Bound: TypeAlias = int | str | datetime | timedelta | After
"""A parsed bound: a version (negative ones count from the newest, -1), `earliest` or `latest`, a time in UTC, a duration before now, or what
comes after one of them."""

MILLISECOND_DIGITS = 13
"""A number with so many digits is milliseconds since the Unix epoch (2001 to 2286). No table has that many versions."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 2**63 - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_AGO = re.compile(r"([0-9]{1,10})\s*([a-z]+)\s+ago")
_UNITS = {
    timedelta(seconds=1): ("s", "sec", "secs", "second", "seconds"),
    timedelta(minutes=1): ("m", "min", "mins", "minute", "minutes"),
    timedelta(hours=1): ("h", "hour", "hours"),
    timedelta(days=1): ("d", "day", "days"),
    timedelta(weeks=1): ("w", "week", "weeks"),
}
_LENGTHS = {name: length for length, names in _UNITS.items() for name in names}
_LONGEST = timedelta(days=36_525)


def parse_bound(bound: Start | Bound) -> Bound:
    """Parse a bound. A duration and `After` are parsed already.

    `now` is `latest`. Times without a zone are UTC, and a date is its midnight.

    Raises:
        ConfigError: it is not a bound.
    """
    if isinstance(bound, timedelta) and abs(bound) > _LONGEST:
        raise _too_long(bound)
    if isinstance(bound, timedelta | After):
        return bound
    if isinstance(bound, Mapping):
        if list(bound) != ["after"] or isinstance(bound["after"], Mapping):
            raise _invalid(bound)
        return _after(bound["after"])
    if isinstance(bound, str):
        return _of_text(bound)
    if isinstance(bound, datetime) and bound == bound:  # excludes pandas' NaT
        return _utc(bound, bound)
    if isinstance(bound, date) and not isinstance(bound, datetime):
        return datetime.combine(bound, time.min, UTC)
    if isinstance(bound, SupportsIndex) and not isinstance(bound, bool):
        return _of_number(operator.index(bound))
    raise _invalid(bound)


def is_relative(bound: Start | Bound) -> bool:
    """Whether the version of a bound depends on the newest version. ConfigError if it is not a bound."""
    parsed = parse_bound(bound)
    inner = parsed.bound if isinstance(parsed, After) else parsed
    return not isinstance(inner, int) or inner < 0


def _after(inner: SupportsIndex | str | date) -> After:
    bound = parse_bound(inner)
    if isinstance(bound, str | After):
        raise ConfigError(f"nothing comes after {inner!r:.100}", hint="Give a version or a time, such as `after 41`")
    return After(bound)


def _of_text(text: str) -> Bound:
    word = text.strip().lower()
    if word.startswith("after "):
        return _after(text.strip()[len("after ") :])
    if word in ("earliest", "latest", "now"):
        return "earliest" if word == "earliest" else "latest"
    if _NUMBER.fullmatch(word):
        return _of_number(int(word))
    if (ago := _AGO.fullmatch(word)) and ago[2] in _LENGTHS:
        # Compared as numbers: a product of timedeltas may overflow.
        if int(ago[1]) > _LONGEST / _LENGTHS[ago[2]]:
            raise _too_long(text)
        return int(ago[1]) * _LENGTHS[ago[2]]
    try:
        return _utc(datetime.fromisoformat(text.strip()), text)
    except ValueError:
        raise _invalid(text) from None


def _of_number(number: int) -> Bound:
    if 10 ** (MILLISECOND_DIGITS - 1) <= number < 10**MILLISECOND_DIGITS:
        return _EPOCH + timedelta(milliseconds=number)
    if abs(number) > _MOST:
        raise ConfigError("a version has at most 64 bits")
    return number


def _utc(moment: datetime, text: object) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise _invalid(text) from None


def _too_long(bound: object) -> ConfigError:
    return ConfigError(f"{bound!r:.200} is longer ago than 100 years", hint="Use `earliest`")


def _invalid(bound: object) -> ConfigError:
    return ConfigError(
        f"{bound!r:.200} is neither a version, nor a timestamp, nor a known word",
        hint="Known: earliest, latest, now; versions such as 12, or -1 for the newest; times such as 2026-01-31T12:00:00Z, "
        "`1 hour ago`, or milliseconds since the Unix epoch (13 digits); `after 12` for the versions after a version or a time",
    )
