"""Encrypted Parquet files: the error says that they are."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from deltalake import write_deltalake

import cdfd
from cdfd.errors import DataError
from cdfd.runtime import native

ROWS = pa.table({"id": [1, 2, 3], "secret": ["a", "b", "c"]})


class Keys(pe.KmsClient):
    """Keys that are their own names."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def encrypt(path: Path, **options: Any) -> None:
    factory = pe.CryptoFactory(lambda _: Keys())
    configuration = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, **options)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(path, ROWS.schema, encryption_properties=properties) as writer:
        writer.write_table(ROWS)


@pytest.fixture(params=[True, False], ids=["cdfd-native", "pyarrow"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "built", native.built and request.param)


@pytest.mark.parametrize("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
def test_encryption_is_not_called_damage(tmp_path: Path, algorithm: str) -> None:
    write_deltalake(tmp_path, ROWS)
    (file,) = tmp_path.glob("*.parquet")
    encrypt(file, encryption_algorithm=algorithm)
    (entry,) = (tmp_path / "_delta_log").glob("*.json")
    # The log has another size.
    size = file.stat().st_size
    (plain,) = [line for line in entry.read_text().splitlines() if '"add"' in line]
    before = plain.partition('"size":')[2].partition(",")[0]
    entry.write_text(entry.read_text().replace(f'"size":{before},', f'"size":{size},'))
    with pytest.raises(DataError, match="the file is encrypted"):
        cdfd.snapshot(str(tmp_path)).read_all()
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="truncated or damaged"):
        cdfd.snapshot(str(tmp_path)).read_all()
