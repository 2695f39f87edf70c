"""Values that all rows of a file share, as columns of Spark: change columns and partition values.

Times and decimals pass as numbers and text, so that neither a zone of Python or the session nor a calendar changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from cdfd.model.columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION

Decode = Callable[[Column], Column]


@dataclass(frozen=True, slots=True)
class Constant:
    """How a value passes to Spark.

    Attributes:
        kind: its type on the way.
        encode: the value on the way, from a scalar.
        decode: the value in Spark.
    """

    kind: pa.DataType
    encode: Callable[[Any], Any]
    decode: Decode


def constant_of(arrow: Any, spark: DataType) -> Constant:
    """How partition values of a type pass. `spark` is the type of the column."""
    if pa.types.is_date32(arrow):
        return Constant(pa.int32(), lambda scalar: scalar.value, F.date_from_unix_date)
    if pa.types.is_timestamp(arrow) and arrow.tz is not None:
        return Constant(pa.int64(), lambda scalar: scalar.value, F.timestamp_micros)
    if pa.types.is_timestamp(arrow):
        # The text of an instant in UTC, without its zone.
        return Constant(pa.string(), lambda scalar: str(scalar.cast(pa.string())), lambda column: column.cast(spark))
    if pa.types.is_decimal(arrow):
        return Constant(pa.string(), lambda scalar: format(scalar.as_py(), "f"), lambda column: column.cast(spark))
    return Constant(arrow, lambda scalar: scalar.as_py(), lambda column: column.cast(spark))


CHANGE_CONSTANTS: Final = {
    CHANGE_TYPE: Constant(pa.string(), str, lambda column: column),
    COMMIT_VERSION: Constant(pa.int64(), int, lambda column: column.cast("bigint")),
    COMMIT_TIMESTAMP: Constant(pa.int64(), int, lambda column: F.timestamp_millis(column.cast("bigint"))),
}
"""How the change columns pass: the time in ms."""
