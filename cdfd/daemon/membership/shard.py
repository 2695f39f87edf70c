"""Shards: how several processes of one pipeline share its tables. Pure.

Each process computes the owner of each table from the table's name alone, by rendezvous hashing: the shard with the highest hash of name and
shard owns the table. So a further shard takes over only tables that it owns itself, one in `count` on average, and no other table moves.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from cdfd.errors import ConfigError

MOST = 10_000
_FORM = re.compile(r"(?:.+-)?([0-9]{1,5})/([0-9]{1,5})", re.DOTALL)
_HINT = "Give the number of this shard and the count, such as 2/5. The first of five shards is 0/5, the last one 4/5"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` shards.

    Attributes:
        index: its number, from 0.
        count: number of shards.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`2/5`, or the name of a pod of a StatefulSet instead of the number: `cdfd-2/5`.

        Raises:
            ConfigError: the text has another form, or there is no such shard.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r:.100} is not a shard", hint=_HINT)
        index, count = int(match[1]), int(match[2])
        if not 0 < count <= MOST or index >= count:
            raise ConfigError(f"there is no shard {index} of {count}", hint=_HINT)
        return cls(index, count)

    def owns(self, table: str) -> bool:
        """Whether this shard delivers a table, by its name."""
        return owner(table, self.count) == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def owner(table: str, count: int) -> int:
    """The number of the shard that delivers a table, of `count` shards."""
    return max(
        range(count),
        key=lambda shard: blake2b(f"{shard}/{table}".encode("utf-8", "surrogateescape"), digest_size=8).digest(),
    )
