"""Names in Avro schemas: those that Avro allows, each given once."""

from __future__ import annotations

import re


class RecordNames:
    """Names of the records within a record: the names on the way to them. None is given twice.

    Args:
        path: the names on the way.
        taken: the names that are taken, shared by all records of a schema.
    """

    def __init__(self, *path: str, taken: set[str] | None = None) -> None:
        self.path = path
        self.taken = set() if taken is None else taken

    @property
    def joined(self) -> str:
        """The name that a record here would have without others."""
        return legal("_".join(self.path))

    def under(self, name: str) -> RecordNames:
        """The names below a field."""
        return RecordNames(*self.path, name, taken=self.taken)

    def take(self) -> str:
        """The name of the next record here."""
        return unique(self.joined, self.taken)


def unique(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where it is taken. It is taken from now on."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate


def legal(name: str) -> str:
    """The name, with `_` for every character that Avro does not allow there."""
    letters = re.sub("[^A-Za-z0-9_]", "_", name)
    return letters if re.match("[A-Za-z_]", letters) else f"_{letters}"


def legal_path(name: str) -> str:
    """A name with its namespace, of which each part is a legal one."""
    return ".".join(map(legal, name.split(".")))
