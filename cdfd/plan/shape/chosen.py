"""A choice of a column. Apart from the shape that it is in, so that a configuration is read without Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# People write `AS` as in SQL. The last one separates.
_RENAMED = re.compile(r"(.*) as (.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A column to publish, and the name to publish it by; None: its own."""

    name: str
    alias: str | None = None

    @property
    def published(self) -> str:
        """The name of the published column."""
        return self.name if self.alias is None else self.alias

    def __str__(self) -> str:
        return self.name if self.alias is None else f"{self.name} as {self.alias}"

    @property
    def entry(self) -> str | dict[str, str]:
        """The choice as `of` takes it, with any names."""
        return self.name if self.alias is None else {"name": self.name, "as": self.alias}

    @classmethod
    def parse(cls, text: str) -> Chosen:
        """`amount`, or `amount as value`."""
        text = text.strip()
        renamed = _RENAMED.fullmatch(text)
        return cls(renamed[1].strip(), renamed[2].strip()) if renamed else cls(text)

    @classmethod
    def of(cls, entry: object) -> Chosen | None:
        """The choice that a user wrote: a name, or `{"name": "amount", "as": "value"}`. None: it has another form."""
        if isinstance(entry, Chosen):
            return entry
        if isinstance(entry, str) and entry:
            return cls(entry)
        if isinstance(entry, Mapping) and entry.keys() == {"name", "as"}:
            name, alias = entry["name"], entry["as"]
            if isinstance(name, str) and isinstance(alias, str) and name and alias:
                return cls(name, alias)
        return None
