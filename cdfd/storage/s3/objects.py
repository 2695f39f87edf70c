"""Bytes of objects, as a store returns them."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object, with the object's size, modification time (ms since the Unix epoch) and ETag."""

    data: bytes | pa.Buffer
    size: int
    modified_ms: int
    etag: str


def modified_ms(moment: datetime) -> int:
    """A time in ms since the Unix epoch, of whole seconds, as in HTTP headers. Listings of some stores are more precise, and both must give
    the same time.
    """
    return int(moment.timestamp()) * 1000
