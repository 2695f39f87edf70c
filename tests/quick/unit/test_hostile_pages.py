"""A Parquet file that contradicts itself is refused, whichever part of it does."""

import pyarrow as pa
import pytest

from cdfd.errors import DataError
from cdfd.runtime import native
from cdfd.scan.parquet import reader
from tests.support.hostile_pages import HOSTILE

pytestmark = pytest.mark.skipif(not native.built, reason="pyarrow alone reads some of them")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_contradicts_itself_is_refused(name: str) -> None:
    _, data = HOSTILE[name]
    with (
        pytest.raises((DataError, ValueError)),
        reader.open_parquet(pa.BufferReader(data)) as file,
    ):
        for _ in file.batches(file.schema_arrow.names, rows=1_000):
            pass
