"""Smaller cases that end as a case does: fewer files, lines, values, bytes."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.support.fuzz import mutate, server
from tests.support.fuzz.cases import Case, Target

SECONDS, TRIES = 20.0, 400


def minimised(target: Target, case: Case, finding: str, seconds: float = SECONDS) -> Case:
    """The smallest case found in a short time that ends in the same finding."""
    deadline = time.monotonic() + seconds
    tries = 0
    again = True
    while again:
        again = False
        for smaller in candidates(case):
            tries += 1
            if time.monotonic() > deadline or tries > TRIES:
                return case
            if server.alone(target, smaller).finding == finding:
                case, again = smaller, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are a little smaller, the ones that are much smaller first."""
    for path in sorted(case.files, key=lambda path: -len(case.files[path])):
        yield replace(case, files={other: data for other, data in case.files.items() if other != path})
    for path, data in sorted(case.files.items(), key=lambda item: -len(item[1])):
        for less in shorter(data):
            yield replace(case, files={**case.files, path: less})
    for args in smaller(case.args):
        yield replace(case, args=args)


def shorter(data: bytes) -> Iterator[bytes]:
    """Without lines, then without values, then without bytes."""
    lines = data.splitlines(keepends=True)
    if len(lines) > 1:
        for count in (len(lines) // 2, 1):
            for at in range(0, len(lines), max(count, 1)):
                yield b"".join(lines[:at] + lines[at + max(count, 1) :])
    if len(data) < 20_000:
        for at, line in enumerate(lines):
            for less in _document(line):
                yield b"".join([*lines[:at], less + b"\n", *lines[at + 1 :]])
    size = len(data) // 2
    while size >= max(1, len(data) // 64):
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2


def _document(line: bytes) -> Iterator[bytes]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return
    for less in smaller(document):
        yield mutate.dumps(less)


def smaller(value: Any) -> Iterator[Any]:
    """A JSON value without one of its parts, or with a simpler one."""
    if isinstance(value, dict):
        for key in value:
            yield {other: item for other, item in value.items() if other != key}
        for key, item in value.items():
            for less in smaller(item):
                yield {**value, key: less}
    elif isinstance(value, list):
        for at in range(len(value)):
            yield value[:at] + value[at + 1 :]
        for at, item in enumerate(value):
            for less in smaller(item):
                yield [*value[:at], less, *value[at + 1 :]]
    elif isinstance(value, str) and len(value) > 1:
        yield ""
        yield value[: len(value) // 2]
        yield value[len(value) // 2 :]
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1:
        yield 0
        yield value // 2
