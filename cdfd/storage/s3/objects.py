"""Bytes of objects, as a store returns them."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object, with the object's size, modification time (ms since the Unix epoch) and ETag."""

    data: bytes | pa.Buffer
    size: int
    modified_ms: int
    etag: str


def modified_ms(seconds: float) -> int:
    """Whole seconds, as in HTTP headers, in ms. Listings of some stores are more precise, and both must give the same time."""
    return int(seconds) * 1000
