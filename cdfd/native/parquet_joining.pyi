from typing import Any

def joined(
    files: list[Any], moved: list[tuple[int, int, int, int, int]]
) -> tuple[bytes, list[int], list[float], int, list[tuple[int, ...]]] | None: ...
