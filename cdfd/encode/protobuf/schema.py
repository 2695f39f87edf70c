"""Schemas of Protobuf 3, of the types of records.

| type (`cdfd.encode.kinds`)   | Protobuf                                                                              |
|------------------------------|---------------------------------------------------------------------------------------|
| boolean                      | `bool`                                                                                |
| int8, int16, int32; int64    | `int32`; `int64`                                                                      |
| float32; float64             | `float`; `double`                                                                     |
| string; bytes                | `string`; `bytes`                                                                     |
| Date                         | `int32`, days since 1970                                                              |
| Timestamp                    | `google.protobuf.Timestamp`                                                           |
| MicroTimestamp               | `int64`, microseconds since 1970                                                      |
| struct                       | a message                                                                             |
| array                        | `repeated` of a message whose `value` is the element, because elements can be null     |
| map                          | `map` of such messages; if its keys are none that Protobuf has, `repeated` of entries  |

Every field of a scalar type is `optional`: a field that is not there is null. Protobuf does not tell an array or a map that is null from
an empty one.

A field keeps its number as long as the registry knows it: numbers are those of the subject's schemas, by column, and new
fields get the next ones, which no field ever had. A column that is dropped, and comes again with another type, is a new field.
Without earlier schemas, fields are numbered in their order.

Names that Protobuf does not allow get `_` for each character that is not a letter, digit or `_`; `json_name` has the name as it is, also for
names that would be `camelCase` in Protobuf's JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyarrow import types

from cdfd.encode.kinds import CONNECT_TIMESTAMP, DECIMAL, HINT, Kind, KindField, column_errors
from cdfd.errors import DataError, UnsupportedError
from cdfd.trevni.avro_names import legal, legal_path, unique

TIMESTAMP: Final = "google.protobuf.Timestamp"

_SCALARS: Final = {
    "boolean": "bool",
    **dict.fromkeys(("int8", "int16", "int32"), "int32"),
    "int64": "int64",
    "float32": "float",
    "float64": "double",
    "string": "string",
    "bytes": "bytes",
}
_KEYS: Final = frozenset(("bool", "int32", "int64", "string"))
_CONFUSED: Final = ({"bool", "int32"}, {"bool", "int64"}, {"string", "bytes"})
"""Types of which consumers read each as the other, with another value or an error."""
_RESERVED_NUMBERS: Final = range(19_000, 20_000)
_LARGEST_NUMBER: Final = 2**29 - 1
_MESSAGE_OF_TYPE: Final = re.compile(r"(?<!^google\.protobuf\.)\b\w+(?=>?$)")
_ROLE: Final = re.compile(r"(Element|Item)(?:_\d+)?$")
"""Of a message around elements or items, by its name."""


@dataclass(eq=False, slots=True)
class Slot:
    """A field of a message.

    Attributes:
        name: of the column or field in the table.
        number: of the field.
        kind: of its values.
        element: the field `value` of the message around each element of an array, or around each value of a map.
        key: of an entry of a map.
        is_entry: whether entries of a map are messages of ours, because Protobuf has no such keys.
        fields: of its message.
    """

    name: str
    number: int
    kind: Kind
    element: Slot | None = None
    key: Slot | None = None
    is_entry: bool = False
    fields: tuple[Slot, ...] = ()


@dataclass(slots=True)
class _Numbers:
    """Numbers of the fields of a message in all schemas.

    Attributes:
        types: of each column the numbers that it has had, by type.
        newest: those of the newest schema.
        last: the largest number that a field has or had.
        owners: of the names of messages in it, the column that had each last.
    """

    types: dict[str, dict[str, int]] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)
    last: int = 0
    owners: dict[str, str] = field(default_factory=dict)

    def add(self, fields: Mapping[str, tuple[int, str]]) -> None:
        """Add those of a newer schema."""
        newer = {number for number, _ in fields.values()}
        self.last = max(self.last, *newer) if newer else self.last
        for numbers in self.types.values():
            # Builds up to 0.2.0 could give a number to another column.
            for type in [type for type, number in numbers.items() if number in newer]:
                del numbers[type]
        for column, (number, type) in fields.items():
            self.types.setdefault(column, {})[_without_path(type)] = number
            if match := _MESSAGE_OF_TYPE.search(type):
                self.owners.pop(match[0], None)
                self.owners[match[0]] = column

    def take(self, column: str, type: str) -> int:
        """The number of a column, which is a new one if the column is new, or comes again with another type."""
        own, newest = _without_path(type), self.newest.get(column)
        numbers = self.types.get(column, {})
        number = numbers.get(own)
        if number is None and newest is not None:
            before = next((each for each, number in numbers.items() if number == newest), own)
            # A registry refuses other types with one number, but it takes these for each other, whose values are others.
            if {re.sub("map<|,.*", "", each) for each in (before, own)} not in _CONFUSED:
                number = newest
        if number is None:
            number = self.last + 1 if self.last + 1 not in _RESERVED_NUMBERS else _RESERVED_NUMBERS.stop
            if number > _LARGEST_NUMBER:
                raise UnsupportedError("a message has too many fields", hint="Choose columns with `columns`")
            self.last = number
        return number

    def message(self, column: str, title: str, taken: set[str], suffix: str = "") -> str:
        """The name of a column's message: the one that it had, so that its fields keep their numbers, or else one of no other column."""
        for name, owner in reversed(self.owners.items()):
            if owner == column and name not in taken:
                role = _ROLE.search(name)
                if suffix == (role[1] if role else ""):
                    taken.add(name)
                    return name
        name = unique(title + suffix, taken | {name for name, owner in self.owners.items() if owner != column})
        taken.add(name)
        return name


@dataclass(slots=True)
class _Message:
    """A message of the text: lines of its fields, and the messages in it."""

    name: str
    lines: list[str] = field(default_factory=list)
    messages: list[_Message] = field(default_factory=list)

    def text(self, indent: str = "") -> Iterator[str]:
        yield f"{indent}message {self.name} {{"
        for message in self.messages:
            yield from message.text(indent + "  ")
        yield from (f"{indent}  {line}" for line in self.lines)
        yield f"{indent}}}"


class ProtobufSchema:
    """The schema of records.

    Args:
        kind: of records; a struct with a name.
        earlier: the schemas of the subject, the newest last, of which fields keep their numbers.

    Attributes:
        text: the file.
        fields: of the record.

    Raises:
        UnsupportedError: a column is of a type that Protobuf has no form for.
        DataError: one of `earlier` is not a schema of Protobuf.
    """

    def __init__(self, kind: Kind, earlier: Sequence[str]) -> None:
        self._numbers: dict[str, _Numbers] = {}
        newest: Mapping[str, Mapping[str, tuple[int, str]]] = {}
        for text in earlier:
            newest = fields_of(text)
            for message, fields in newest.items():
                self._numbers.setdefault(message, _Numbers()).add(fields)
        for message, known in self._numbers.items():
            known.newest = {name: number for name, (number, _) in newest.get(message, {}).items()}
        self._imports: set[str] = set()
        self._done: dict[int, tuple[str, tuple[Slot, ...]]] = {}
        self._top: list[_Message] = []
        package, _, name = legal_path(kind.name or "Value").rpartition(".")
        # Names are looked up in the packages around first, and one of them may be `shop.google`.
        self._timestamp = f".{TIMESTAMP}" if "google" in package.split(".")[1:] else TIMESTAMP
        # The first message of a file is that of the record, and shared ones stand behind it.
        record = _Message(name)
        self._top.append(record)
        self.fields = self._fill(record, kind, record.name)
        lines = ['syntax = "proto3";']
        lines += [f"package {package};"] if package else []
        lines += [f'import "{name}";' for name in sorted(self._imports)]
        lines += [line for message in self._top for line in message.text()]
        self.text = "\n".join(lines) + "\n"

    def _fill(self, message: _Message, kind: Kind, path: str) -> tuple[Slot, ...]:
        """Write the fields of a struct into its message."""
        taken: set[str] = set()
        slots = []
        numbers = self._numbers.get(path) or _Numbers()
        columns = {each.name for each in kind.fields}
        following: dict[str, int] = {}
        names = [field_name(each.name, taken, columns, following) for each in kind.fields]
        # Names of messages and of fields share a space.
        messages = set(taken)
        for each, name in zip(kind.fields, names, strict=True):
            with column_errors(kind, each):
                slots.append(self._field(message, each, name, numbers, path, messages))
        return tuple(slots)

    def _field(
        self,
        message: _Message,
        each: KindField,
        name: str,
        numbers: _Numbers,
        path: str,
        messages: set[str],
    ) -> Slot:
        if "\0" in each.name:
            raise UnsupportedError("Protobuf has no name with a zero byte", hint=HINT)
        if each.name.startswith("[") and each.name.endswith("]"):
            raise UnsupportedError("Protobuf has no name between [ and ], which are for extensions in JSON", hint=HINT)
        options = f" [json_name = {json.dumps(each.name, ensure_ascii=False)}]" if _json_name(name) != each.name else ""
        message_name = partial(numbers.message, each.name, _title(name), messages)
        label, type, slot = self._type(message, each.kind, name, path, message_name)
        slot.number = number = numbers.take(each.name, type)
        if not label and not (each.kind.type == "struct" or type == self._timestamp or type.startswith("map<")):
            label = "optional " if each.nullable else ""
        comment, arrow = "", each.kind.arrow
        if arrow is not None and types.is_date(arrow) and type == "int32":
            comment = " // days since 1970-01-01"
        elif arrow is not None and types.is_timestamp(arrow) and type == "int64":
            comment = " // microseconds since 1970-01-01"
        message.lines.append(f"{label}{type} {name} = {number}{options};{comment}")
        return slot

    def _type(
        self, message: _Message, kind: Kind, name: str, path: str, message_name: Callable[..., str]
    ) -> tuple[str, str, Slot]:
        """The label and type of a field, and its slot, which has no number yet."""
        match kind.type:
            case "struct":
                if kind.name is None:
                    below = _Message(message_name())
                    message.messages.append(below)
                    fields = self._fill(below, kind, f"{path}.{below.name}")
                    return "", below.name, Slot(name, 0, kind, fields=fields)
                if id(kind) not in self._done:
                    # Several fields have it: it stands beside the record.
                    taken = {each.name for each in self._top}
                    shared = _Message(unique(_title(legal(kind.name.rpartition(".")[2])), taken))
                    self._top.append(shared)
                    self._done[id(kind)] = shared.name, self._fill(shared, kind, shared.name)
                type, fields = self._done[id(kind)]
                return "", type, Slot(name, 0, kind, fields=fields)
            case "array":
                assert kind.items is not None
                below = _Message(message_name(suffix="Element"))
                element = self._wrap(below, kind.items, f"{path}.{below.name}")
                message.messages.append(below)
                return "repeated ", below.name, Slot(name, 0, kind, element=element)
            case "map":
                return self._map(message, kind, name, path, message_name)
            case "null":
                raise UnsupportedError("a column of type void has no type in Protobuf", hint=HINT)
        if kind.name == DECIMAL:
            raise UnsupportedError(
                "Protobuf has no decimals", hint="Set `decimal: string` or `decimal: double` in `sink.format`"
            )
        if kind.name == CONNECT_TIMESTAMP:
            self._imports.add("google/protobuf/timestamp.proto")
            return "", self._timestamp, Slot(name, 0, kind)
        return "", _SCALARS[kind.type], Slot(name, 0, kind)

    def _map(
        self, message: _Message, kind: Kind, name: str, path: str, message_name: Callable[..., str]
    ) -> tuple[str, str, Slot]:
        assert kind.keys is not None
        assert kind.items is not None
        key = _SCALARS.get(kind.keys.type, "") if kind.keys.name is None else ""
        # Protobuf names the message of an entry after the field, without underscores: that has to begin with a letter.
        is_map = key in _KEYS and name.lstrip("_")[:1].isalpha()
        below = _Message(message_name(suffix="Item"))
        own_path = f"{path}.{below.name}"
        if is_map:
            key_slot, element = Slot(name, 1, kind.keys), self._wrap(below, kind.items, own_path)
        else:
            pair = Kind("struct", fields=(KindField("key", kind.keys), KindField("value", kind.items)))
            key_slot, element = self._fill(below, pair, own_path)
        message.messages.append(below)
        slot = Slot(name, 0, kind, element=element, key=key_slot, is_entry=not is_map)
        return ("", f"map<{key}, {below.name}>", slot) if is_map else ("repeated ", below.name, slot)

    def _wrap(self, message: _Message, kind: Kind, path: str) -> Slot:
        (slot,) = self._fill(message, Kind("struct", fields=(KindField("value", kind),)), path)
        return slot


def _without_path(type: str) -> str:
    """A type as cdfd writes it: registries may add the packages and messages around it."""
    return re.sub(r"[\w.]*\.|\s", "", type)


def _title(name: str) -> str:
    """A message's name: that of a field in upper camel case."""
    words = [word for word in name.split("_") if word]
    return legal("".join(word[:1].upper() + word[1:] for word in words) or "Field")


def field_name(name: str, taken: set[str], columns: set[str], following: dict[str, int]) -> str:
    """A name that no field has, neither as it is nor as Protobuf has it in JSON by default. Both are taken from now on.

    It is not the name of another column, which is that column's `json_name`: Python's Protobuf refuses such a schema.

    Args:
        name: of the column.
        taken: names of fields.
        columns: names of all columns.
        following: the number to try next behind a name that many columns would have, such as `__` of two letters that are not ASCII.
    """
    candidate = base = legal(name)
    number = following.get(base, 2)
    while candidate in taken or _json_name(candidate) in taken or (candidate != name and candidate in columns):
        candidate, number = f"{base}_{number}", number + 1
    following[base] = number
    taken |= {candidate, _json_name(candidate)}
    return candidate


def _json_name(name: str) -> str:
    """The name that a field has in JSON by default."""
    return re.sub("_+(.?)", lambda match: match[1].upper(), name)


_MESSAGE: Final = re.compile(r"\s*message\s+(\w+)\s*\{\s*$")
_FIELD: Final = re.compile(
    r"\s*(?:optional\s+|repeated\s+)?\.?([\w.]+(?:<[\w., ]+>)?)\s+(\w+)\s*=\s*(\d+)\s*"
    r"(?:\[\s*(?:json_name\s*=\s*(\"(?:[^\"\\]|\\.)*\"))?.*\])?;"
)
_ESCAPE: Final = re.compile(rb"\\(\\|['?]|[0-7]{1,3})")
_END: Final = re.compile(r"\s*\}\s*$")


def fields_of(text: str) -> dict[str, dict[str, tuple[int, str]]]:
    """Number and type of fields by their `json_name` or else their name, of each message by its path.

    Args:
        text: a schema that cdfd has written, or a registry in the same form.

    Raises:
        DataError: there is no message in it.
    """
    path: list[str] = []
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    # A json_name may have other characters that Python takes for the end of a line.
    for line in text.split("\n"):
        if match := _MESSAGE.match(line):
            path.append(match[1])
            messages[".".join(path)] = {}
        elif path and (match := _FIELD.match(line)):
            # `_2` without a json_name is the column `2`: as a column, `_2` has one.
            column = _json_name(match[2]) if match[2].startswith("_") else match[2]
            if match[4]:
                with suppress(ValueError):
                    column = _unescape(match[4])
            messages[".".join(path)][column] = int(match[3]), match[1]
        elif path and _END.match(line):
            path.pop()
    if not messages:
        raise DataError(
            f"the registry has a schema that has no message: {text:.200}", hint="Is the subject another topic's?"
        )
    return messages


def _unescape(literal: str) -> str:
    """The text of a literal in quotes, with JSON's escapes as cdfd writes them, or Protobuf's own, which are numbers of bytes.

    Raises:
        ValueError: it has others.
    """

    def replace(match: re.Match[bytes]) -> bytes:
        if match[1] == b"\\":
            return match[0]
        return match[1] if match[1] in (b"'", b"?") else bytes([int(match[1], 8) & 0xFF])

    text: str = json.loads(_ESCAPE.sub(replace, literal.encode()), strict=False)
    return text
