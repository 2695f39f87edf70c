"""Trevni files in S3: written in one piece, and read in ranges of the columns and blocks that are wanted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.errors import StorageError
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import Server


@pytest.fixture
def options(proxy: Proxy) -> dict[str, object]:
    return dict(Server(proxy.url).options())


def test_files_are_written_and_read_in_ranges(proxy: Proxy, bucket: str, options: dict[str, object]) -> None:
    chance = np.random.default_rng(1)
    count = 200_000
    table = pa.table({name: chance.integers(0, 1 << 60, count) for name in "abcdefgh"})
    place = f"s3://{bucket}/lake/rows.trv"
    trevni.write_table(table, place, codec="null", storage_options=options)
    before = len(proxy.asked)
    some = trevni.read_table(place, columns=["f"], rows=range(100_000, 100_100), storage_options=options)
    assert some.equals(table.select(["f"]).slice(100_000, 100))
    gets = [each for each in proxy.asked[before:] if each.method == "GET"]
    assert 1 <= len(gets) <= 5
    assert trevni.read_table(place, storage_options=options).equals(table)


def test_a_file_that_is_not_there(bucket: str, options: dict[str, object]) -> None:
    with pytest.raises(StorageError, match=r"none\.trv"):
        trevni.read_schema(f"s3://{bucket}/none.trv", storage_options=options)
