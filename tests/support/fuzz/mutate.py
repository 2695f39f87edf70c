"""Mutations of bytes, texts and JSON. Each takes a generator of random numbers and gives a value that is different, most of the time."""

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 256, 32_767, 65_535, 65_536, 10**6, 10**9),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64),
    *(10**18, 10**20, 10**40, 0.5, 1e308, 1e-320),
)
RAW = ("1e400", "-1e999", "NaN", "Infinity", "-0", "1.0", "1e3", "01", "0x10", "9" * 5000, "-" + "9" * 400, "1E-5000")
"""Numbers as texts: Python's JSON would not write them."""
TEXTS = (
    *("", " ", "null", "true", "0", "-1", "1e3", "NaN", "\0", "a\0b", "a\nb", "\r\n", "\x1b[31mred\x1b[0m", "\x7f\x9b"),
    *(
        "\u202egnp",
        "\u2028",
        "\ufeff",
        "\ud800",
        "\udfff\ud800",
        "é",
        "e\u0301",
        "ß",
        "İ",
        "漢字",
        "😀",
        "'",
        '"',
        "\\",
    ),
    *("..", "../canary.parquet", "/etc/passwd", "file:///etc/passwd", "file://host/x", "//host/x", "a/../../canary"),
    *("%2e%2e%2fcanary", "%00", "%", "%zz", "%ff", "%25", "C:\\x", "s3://b/x", "http://127.0.0.1/x", "data:,x", "."),
    *("2020-01-01", "2020-13-41", "99999-01-01", "0000-00-00", "-0001-01-01", "2020-01-01 25:61:61", "10000000 weeks"),
    *("interval 1 day", "interval 99999999999999 weeks", "__HIVE_DEFAULT_PARTITION__", "${HOME}", "{{x}}", "[]", "{}"),
    *("A" * 300, "B" * 70_000, "[" * 3000, '{"a":' * 2000, "9" * 5000, "id", "ID", "_change_type", "_commit_version"),
)
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [1, "a", None], {"a": {"a": {}}})
_NUMBER = re.compile(rb"-?\d+")


class Raw(str):
    """A JSON text to be written as it is."""


def value(random: Random) -> Any:
    """Any JSON value."""
    kind = random.randrange(5)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return Raw(random.choice(RAW))
    if kind == 2:
        return random.choice(VALUES)
    if kind == 3 and random.random() < 0.1:
        return nested(random.choice((20, 200, 3000)), random.random() < 0.5)
    return random.choice(TEXTS)


def nested(depth: int, in_lists: bool) -> Raw:
    """Something very deep."""
    return Raw("[" * depth + "]" * depth if in_lists else '{"a":' * depth + "1" + "}" * depth)


def dumps(value: Any) -> bytes:
    """JSON, with raw texts as they are, and keys that are there twice where a key ends in a tab."""
    if isinstance(value, Raw):
        return value.encode()
    if isinstance(value, dict):
        pairs = (json.dumps(key.rstrip("\t")).encode() + b":" + dumps(item) for key, item in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(dumps, value)) + b"]"
    return json.dumps(value).encode()


def places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value."""
    result: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        each = todo.pop()
        pairs = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, item in pairs:
            result.append((each, key))
            todo.append(item)
    return result


def tree(random: Random, document: Any) -> Any:
    """A JSON value, changed in place somewhere (the whole, where there is nothing in it)."""
    everywhere = places(document)
    if not everywhere:
        return value(random)
    # Few keys decide much, and arrays of values are long: shallow places count twice.
    container, key = random.choice(everywhere[: len(everywhere) // 2 + 1] if random.random() < 0.5 else everywhere)
    kind = random.randrange(10)
    item = container[key]
    if kind <= 3:
        container[key] = near(random, item)
    elif kind == 4:
        del container[key]
    elif kind == 5:
        container[key] = value(random)
    elif kind == 6 and isinstance(container, dict):
        renamed = random.choice((key.upper(), key.lower(), key + "s", "", *TEXTS[:20]))
        container[renamed] = container.pop(key)
    elif kind == 7 and isinstance(container, dict):
        container[key + "\t"] = near(random, item)
    elif kind == 8:
        other, name = random.choice(everywhere)
        container[key] = other.get(name) if isinstance(other, dict) else item
        if container[key] is container or depth(container[key]) > 50:
            container[key] = None
    else:
        container[key] = [item] if random.random() < 0.5 else {"a": item}
    return document


def depth(document: Any) -> int:
    """How deep a value is, up to 60: what refers to itself is deeper."""
    level, todo = 0, [document]
    while todo and level < 60:
        todo = [i for e in todo for i in (e.values() if isinstance(e, dict) else e if isinstance(e, list) else ())]
        level += 1
    return level


def near(random: Random, item: Any) -> Any:
    """A value of the same kind, most of the time."""
    if isinstance(item, bool):
        return not item
    if isinstance(item, int | float):
        return random.choice((item + 1, item - 1, -item, item * 2, random.choice(NUMBERS), Raw(random.choice(RAW))))
    if isinstance(item, str):
        if random.random() < 0.2 and item[:1] in ("{", "["):
            inner = document(random, item.encode(errors="replace"))
            return inner.decode(errors="replace")
        return text(random, item)
    return value(random)


def document(random: Random, data: bytes) -> bytes:
    """A JSON text with a change in its values; one in its bytes where it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return content(random, data)
    return dumps(tree(random, value))


def text(random: Random, original: str) -> str:
    """A text, changed somewhere."""
    at = random.randrange(len(original) + 1)
    kind = random.randrange(6)
    if kind == 0:
        return random.choice(TEXTS)
    if kind == 1:
        return original[:at] + random.choice(TEXTS) + original[at:]
    if kind == 2:
        return original[:at]
    if kind == 3:
        return (
            original[:at]
            + chr(random.choice((0, 1, 9, 10, 27, 34, 37, 92, 127, 133, 160, 0x202E, 0xD800)))
            + original[at:]
        )
    if kind == 4:
        numbers = [*re.finditer(r"\d+", original)]
        if numbers:
            hit = random.choice(numbers)
            number = random.choice([*map(str, NUMBERS), "9" * 5000])
            return original[: hit.start()] + number + original[hit.end() :]
    return original[:at] + original[at + 1 :] if original else "x"


def content(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Bytes, changed somewhere."""
    made = bytearray(data)
    at = random.randrange(len(made) + 1)
    kind = random.randrange(9)
    if not made or kind == 0:
        made[at:at] = random.randbytes(random.choice((1, 2, 4, 8, 100)))
    elif kind == 1:
        del made[at:]
    elif kind == 2:
        made[min(at, len(made) - 1)] ^= 1 << random.randrange(8)
    elif kind == 3:
        made[min(at, len(made) - 1)] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
    elif kind == 4:
        del made[at : at + random.choice((1, 4, 64))]
    elif kind == 5:
        end = min(len(made), at + random.choice((1, 4, 64)))
        made[at:at] = made[at:end] * random.choice((1, 2, 50))
    elif kind == 6:
        number = random.choice([n for n in NUMBERS if isinstance(n, int)])
        form, size = random.choice((("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8)))
        made[at : at + size] = struct.pack(form, number % 2 ** (8 * size))
    elif kind == 7:
        numbers = [*_NUMBER.finditer(data)]
        if numbers:
            hit = random.choice(numbers)
            made[hit.start() : hit.end()] = str(random.choice(NUMBERS)).encode()
    else:
        other = random.choice(others) if others else data
        start = random.randrange(len(other) + 1)
        made[at : at + random.choice((0, 16, 256))] = other[start : start + random.choice((1, 16, 256, 4096))]
    return bytes(made)


Mutator = Callable[[Random, Any], Any]


def times(random: Random) -> int:
    """How many mutations: one mostly, three at most."""
    return random.choice((1, 1, 1, 2, 2, 3))


def repeated(random: Random, value: Any, *mutators: Mutator) -> Any:
    """One to three of these mutations, one after the other."""
    for _ in range(times(random)):
        value = random.choice(mutators)(random, value)
    return value
