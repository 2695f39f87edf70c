"""The names that columns and records have had in the earlier Avro schemas of a subject.

Names that Avro does not allow can become equal. Then each column keeps the name that it had, and takes none of another column: a consumer
that reads by name would get the other column's values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cdfd.trevni.avro_names import legal, unique

Path = tuple[str, ...]
"""Names from the record down, as the table has them."""


@dataclass(slots=True)
class EarlierNames:
    """Names by what had them: a record by its path, a field by the path of its column.

    Attributes:
        owners: of each name, within the path of a record, or `()` for names of records; the newest owner alone.
    """

    owners: dict[Path, dict[str, Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, schemas: Sequence[str]) -> EarlierNames:
        """Those of schemas, the newest last. One that is not Avro has none."""
        earlier = cls()
        for text in schemas:
            # Others may have registered it.
            with suppress(ValueError, RecursionError):
                earlier._add(json.loads(text), ())
        return earlier

    def take(self, within: Path, path: Path, name: str, taken: set[str]) -> str:
        """The name of a field or record: the one that it had, or else one that no other has or had. It is taken from now on."""
        owners = self.owners.get(within, {})
        own = next((each for each, owner in reversed(owners.items()) if owner == path and each not in taken), None)
        chosen = own or unique(name, taken | owners.keys() if owners else taken)
        taken.add(chosen)
        return chosen

    def _add(self, schema: Any, path: Path) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._add(branch, path)
        if not isinstance(schema, dict):
            return
        match schema.get("type"):
            case "array":
                items = schema.get("items")
                if isinstance(items, dict) and items.get("type") == "record":
                    self._own((), items.get("name"), (*path, "entry"))
                    for each in _fields(items):
                        self._add(each["type"], (*path, each["name"]))
                else:
                    self._add(items, (*path, "element"))
            case "map":
                self._add(schema.get("values"), (*path, "value"))
            case "record":
                if "namespace" in schema:
                    path = (str(schema.get("name")),)
                self._own((), schema.get("name"), path)
                for each in _fields(schema):
                    column = (*path, _column(each["name"], each.get("doc")))
                    self._own(path, each["name"], column)
                    self._add(each["type"], column)

    def _own(self, within: Path, name: Any, owner: Path) -> None:
        names = self.owners.setdefault(within, {})
        names.pop(name, None)
        names[name] = owner


def _fields(record: dict[str, Any]) -> list[dict[str, Any]]:
    fields = record.get("fields")
    listed = fields if isinstance(fields, list) else []
    return [each for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str) and "type" in each]


def _column(name: str, doc: Any) -> str:
    """The column of a field. Others than cdfd may have written a `doc` that is no name."""
    if isinstance(doc, str) and re.fullmatch(rf"{legal(doc)}(_\d+)*", name):
        return doc
    return name
