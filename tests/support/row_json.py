"""The oracle of the JSON encoders: one value at a time, in plain Python."""

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
from pyarrow import types


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def object_text(names: list[str], values: list[str]) -> str:
    return "{" + ",".join(f"{dumps(name)}:{value}" for name, value in zip(names, values, strict=True)) + "}"


def float_text(number: float) -> str:
    """The shortest digits that read back as the same number, as Python finds them."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def scalar_text(value: Any, kind: pa.DataType) -> str:
    """The text of a value without quotes."""
    if types.is_boolean(kind):
        return "true" if value else "false"
    if types.is_integer(kind):
        return str(value)
    if types.is_floating(kind):
        return float_text(value)
    if types.is_decimal(kind):
        with decimal.localcontext(prec=100):
            return format(value.quantize(decimal.Decimal(1).scaleb(-kind.scale)), "f")
    if types.is_date(kind):
        return value.isoformat()
    if types.is_timestamp(kind):
        utc = value if value.tzinfo is None else value.astimezone(dt.UTC)
        return utc.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")
    if types.is_time(kind):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def named(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return named(kind.value_type)
    return not (types.is_nested(kind) or "binary" in str(kind))


def bare(kind: pa.DataType, text: str) -> bool:
    special = text in ("NaN", "Infinity", "-Infinity")
    return types.is_boolean(kind) or types.is_integer(kind) or (types.is_floating(kind) and not special)


def json_text(value: Any, kind: pa.DataType) -> str:
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return json_text(value, kind.value_type)
    if value is None:
        return "null"
    if isinstance(kind, pa.JsonType):
        return value
    if types.is_struct(kind):
        fields = list(kind)
        return object_text([f.name for f in fields], [json_text(value[f.name], f.type) for f in fields])
    if types.is_map(kind):
        if named(kind.key_type):
            key = kind.key_type.value_type if types.is_dictionary(kind.key_type) else kind.key_type
            pairs = [f"{dumps(scalar_text(k, key))}:{json_text(v, kind.item_type)}" for k, v in value]
            return "{" + ",".join(pairs) + "}"
        pairs = [f"[{json_text(k, kind.key_type)},{json_text(v, kind.item_type)}]" for k, v in value]
        return "[" + ",".join(pairs) + "]"
    if types.is_nested(kind):
        return "[" + ",".join(json_text(item, kind.value_type) for item in value) + "]"
    text = scalar_text(value, kind)
    return text if bare(kind, text) else dumps(text)


def row_texts(batch: pa.RecordBatch) -> list[str]:
    """The objects of a batch."""
    kinds = [field.type for field in batch.schema]
    columns = [
        [json_text(value, kind) for value in column.to_pylist()]
        for column, kind in zip(batch.columns, kinds, strict=True)
    ]
    return [object_text(batch.schema.names, [column[row] for column in columns]) for row in range(batch.num_rows)]


def parsed(line: str) -> Any:
    """JSON as a value that shows every difference, order and repetition of names too, but the notation of a float."""
    return json.loads(
        line,
        parse_float=lambda text: ("float", decimal.Decimal(text).normalize()),
        parse_int=lambda text: ("integer", int(text)),
        object_pairs_hook=lambda pairs: ("object", pairs),
    )
