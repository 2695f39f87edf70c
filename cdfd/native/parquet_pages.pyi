from collections.abc import Callable, Sequence
from typing import Any

KINDS: dict[str, int]

class Unusual(Exception): ...

def release() -> None: ...

class Block:
    size: int
    def __init__(self, size: int, whole: bool = False) -> None: ...

class Column:
    entries: int
    count: int
    text_bytes: int
    has_levels: bool
    is_ascii: bool
    is_repeated: bool
    def __init__(
        self,
        source: Any,
        chunks: Sequence[tuple[int, int, int, int]],
        kind: int,
        width: int,
        levels: tuple[int, int],
        keeps_levels: bool,
        most: int,
        decompress: Callable[[int, Any, int], Any],
        unify: Callable[[Sequence[bytes]], Any] | None,
    ) -> None: ...
    def take(self, rows: int, most: int, values: Block, offsets: Block | None) -> int: ...
    def validity(self, depth: int, exists: int, valid: int, bits: Any) -> tuple[int, int]: ...
    def lists(self, depth: int, exists: int, filled: int, offsets: Any) -> int: ...

def spread(bits: Any, count: int, size: int, values: Any, out: Any) -> bool: ...
def spread_ends(bits: Any, count: int, ends: Any, out: Any) -> bool: ...
