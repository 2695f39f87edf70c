"""Masks: values of a column replaced by nulls, a constant, their beginning, or a keyed hash. Pure.

Arrow's kernels do all but the hash, which Arrow does not have. A batch is hashed by its distinct values: each costs about a microsecond,
and less if it was in a batch before.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal as Number
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.datatypes import Decimal, Primitive, StructField
from cdfd.errors import ConfigError, LogError
from cdfd.escaping import UNICODE_HINT, is_unicode
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of

Method = Literal["nullify", "constant", "truncate", "hmac_sha256"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

SHORTEST_KEY = 16
"""Bytes of a key, at least."""

Apply: TypeAlias = Callable[[Any], Any]

_STRING, _BINARY = Primitive("string"), Primitive("binary")
_HASHED: Final = (
    _STRING,
    _BINARY,
    Primitive("byte"),
    Primitive("short"),
    Primitive("integer"),
    Primitive("long"),
    Primitive("date"),
    Primitive("boolean"),
)


@dataclass(frozen=True, slots=True)
class Mask:
    """How the values of a column are hidden.

    Attributes:
        method: `nullify`: null. `constant`: `value`. `truncate`: the first `length` characters or bytes. `hmac_sha256`: the hexadecimal
            digits of HMAC-SHA256 by `key` of the value's text, or of its bytes; null stays null.
        value: text of the constant, as that of a partition value.
        length: characters or bytes to keep.
        key: secret of the hash. Never shown.
    """

    method: Method
    value: str | None = None
    length: int | None = None
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        arguments = {"constant": self.value, "truncate": self.length, "hmac_sha256": self.key}
        needs = {"constant": "a value", "truncate": "a length", "hmac_sha256": "a key"}
        if self.method not in METHODS:
            raise ConfigError(f"there is no mask {self.method!r:.100}", hint=f"One of: {', '.join(METHODS)}")
        for method, value in arguments.items():
            if method == self.method and value is None:
                raise ConfigError(f"the mask {method} needs {needs[method]}")
            if method != self.method and value is not None:
                raise ConfigError(f"the mask {self.method} takes no {needs[method].removeprefix('a ')}")
        if self.value is not None and not is_unicode(self.value):
            raise ConfigError("the constant of a mask is not Unicode text", hint=UNICODE_HINT)
        if self.length is not None and not 0 <= self.length < 1 << 63:
            raise ConfigError("the length of a mask is negative, or has more than 63 bits")
        if self.key is not None and len(self.key) < SHORTEST_KEY:
            raise ConfigError(f"the key of a mask has fewer than {SHORTEST_KEY} bytes", hint="Use a longer one")

    def field(self, column: StructField) -> StructField:
        """The column as it is published."""
        if self.method == "hmac_sha256":
            return replace(column, type=_STRING)
        return replace(column, nullable=True) if self.method == "nullify" else column

    def applied(self, column: StructField) -> Apply:
        """The function that masks arrays of a column.

        Raises:
            ConfigError: the column has another type than the mask takes.
        """
        kind = column.type
        match self.method:
            case "nullify":
                return lambda array: pa.nulls(len(array), array.type)
            case "constant":
                scalar = self.constant(column)
                return lambda array: pa.repeat(scalar, len(array))
            case "truncate" if kind == _STRING:
                return lambda array: pc.utf8_slice_codeunits(array, 0, self.length)
            case "truncate" if kind == _BINARY:
                return lambda array: pc.binary_slice(array, 0, self.length)
            case "hmac_sha256" if kind in _HASHED or isinstance(kind, Decimal):
                return self._hash
        takes = (
            "strings and bytes"
            if self.method == "truncate"
            else "strings, bytes, whole numbers, decimals, dates, booleans"
        )
        raise ConfigError(
            f"column {column.name!r:.100} is of type {kind!s:.100}, which the mask {self.method} cannot hide",
            hint=f"It takes {takes}. Use nullify",
        )

    def constant(self, column: StructField) -> Any:
        """The value of all rows, in the type of a column. ConfigError if it is not of that type."""
        assert self.value is not None
        if column.type == _STRING:
            return scalar_of(self.value, pa.string())
        try:
            value = values.parse(self.value, column.type, column.name)
        except (LogError, KeyError):
            value = None
        if value is None or not value.is_valid:
            raise ConfigError(
                f"the constant of a mask is not a value of column {column.name!r:.100}, which is of type {column.type!s:.100}"
            )
        return value

    def _hash(self, array: Any) -> Any:
        assert self.key is not None
        encoded = array.dictionary_encode()
        # A Python object for each distinct value, and not for each row.
        digests = [None if text is None else _digest(self.key, text) for text in _texts(encoded.dictionary)]
        return pc.take(array_of(digests, pa.string()), encoded.indices)


def _texts(array: Any) -> list[bytes | None]:
    """Bytes as they are, and other values as text."""
    texts = array if pa.types.is_binary(array.type) else array.cast(pa.string()).cast(pa.binary())
    if not pa.types.is_decimal(array.type):
        return list(texts.to_pylist())
    # Arrow prints decimals below a millionth with an exponent.
    return [
        format(Number(text.decode()), "f").encode() if text and b"E" in text else text for text in texts.to_pylist()
    ]


@lru_cache(maxsize=1 << 16)
def _digest(key: bytes, text: bytes) -> str:
    """The hash of a value, remembered for the batches that follow."""
    return hmac.digest(key, text, "sha256").hex()
