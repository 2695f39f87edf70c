"""Random files of pyarrow and delta-rs, read as they were written. `make oracle` reads thousands, and those of Spark."""

from pathlib import Path

import pytest

from cdfd.runtime import native
from tests.support.parquet_oracle import ALL, WITH_ZONES, Write, by_delta_rs, by_pyarrow, difference

pytestmark = pytest.mark.skipif(not native.built, reason="pyarrow alone does not read all of them")


@pytest.mark.parametrize(("write", "count"), [(by_pyarrow, 60), (by_delta_rs, 12)], ids=["pyarrow", "delta-rs"])
def test_random_files_are_read_as_they_were_written(write: Write, count: int, tmp_path: Path) -> None:
    types = ALL if write is by_pyarrow else WITH_ZONES
    actual = [difference(write, seed, tmp_path / str(seed), types) for seed in range(count)]
    assert not [what for what, _ in actual if what]
    # pyarrow is beside it nearly always.
    assert sum(read for _, read in actual) > count * 0.9
