"""Shapes of rows from what users write: arguments in Python, options of commands and of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdfd.errors import ConfigError
from cdfd.escaping import UNICODE_HINT, is_unicode
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.shape import Shape

if TYPE_CHECKING:
    from cdfd.plan.shape.masks import Mask, Method

_ARGUMENTS = {"constant": "value", "truncate": "length", "hmac_sha256": "hmac_key_file"}
_MASK_HINT = "Such as nullify, constant:VALUE, truncate:2 or hmac_sha256:FILE, whose FILE has the key"


def shape_of(
    where: str | None = None,
    columns: object = None,
    mask: Mapping[str, object] | None = None,
    exclude_change_types: Sequence[str] | str = (),
) -> Shape:
    """The shape that the arguments of the Python API describe.

    Raises:
        ConfigError: an argument has another form, or contradicts itself.
    """
    if where is not None and not isinstance(where, str):
        raise ConfigError(f"where is {where!r:.100}", hint="Give a filter as text, such as \"region = 'de'\"")
    if mask is not None and not (isinstance(mask, Mapping) and all(isinstance(name, str) for name in mask)):
        raise ConfigError("mask is not a mapping of names", hint='Give masks by column, such as {"email": "nullify"}')
    if not isinstance(exclude_change_types, Iterable):
        raise ConfigError(
            f"exclude_change_types is {exclude_change_types!r:.100}", hint='Give types, such as ["delete"]'
        )
    excluded = (exclude_change_types,) if isinstance(exclude_change_types, str) else tuple(exclude_change_types)
    chosen = None
    if columns is not None:
        listed = [columns] if isinstance(columns, str | Mapping) or not isinstance(columns, Iterable) else list(columns)
        if not listed:
            raise ConfigError("`columns` is empty", hint="Leave it out to read all columns")
        chosen = tuple(map(_choose, listed))
    predicate = None
    if where is not None:
        from cdfd.plan.shape.parser import parse_filter

        predicate = parse_filter(where)
    return Shape(
        chosen,
        predicate,
        tuple((name, mask_of(name, text)) for name, text in (mask or {}).items()),
        excluded,
    )


def _choose(entry: object) -> Chosen:
    if chosen := Chosen.of(entry):
        return chosen
    raise ConfigError(
        f"columns has {entry!r:.100}", hint='Give names, such as ["id", {"name": "amount", "as": "value"}]'
    )


def mask_of(column: str, entry: object) -> Mask:
    """A mask: a `Mask`, a mapping with `method`, the same as JSON, or text such as `truncate:2`.

    Raises:
        ConfigError: it has another form, or the file of a key cannot be read. The message never has the key.
    """
    from cdfd.plan.shape.masks import Mask
    from cdfd.runtime.mounted import read_secret

    try:
        if isinstance(entry, Mask):
            return entry
        entry = mask_settings(entry) if isinstance(entry, str) else entry
        keys = {"method", "value", "length", "hmac_key", "hmac_key_file"}
        if (
            not isinstance(entry, Mapping)
            or not {"method"} <= entry.keys() <= keys
            or {"hmac_key", "hmac_key_file"} <= entry.keys()
        ):
            raise ConfigError("it is not a mask", hint=_MASK_HINT)
        value, length, key = entry.get("value"), entry.get("length"), entry.get("hmac_key")
        if "hmac_key_file" in entry:
            try:
                key = read_secret(str(entry["hmac_key_file"]))
            except ValueError as error:
                raise ConfigError(f"the key {str(entry['hmac_key_file'])!r:.200}: {error}") from None
        if isinstance(key, str):
            if not is_unicode(key):
                raise ConfigError("the key is not Unicode text", hint=UNICODE_HINT)
            key = key.encode()
        right: list[bool] = [
            value is None or isinstance(value, str),
            length is None or (isinstance(length, int) and not isinstance(length, bool)),
            key is None or isinstance(key, bytes),
        ]
        if not all(right):
            raise ConfigError("the constant is a text, the length a number, the key text or bytes", hint=_MASK_HINT)
        parts: Any = (value, length, key)
        return Mask(_method(str(entry["method"])), *parts)
    except ConfigError as error:
        raise ConfigError(f"mask of column {column!r:.100}: {error.what}", hint=error.hint) from None


def mask_as_json(mask: Mask) -> str:
    """The mask as `mask_of` takes it, with its key. Never show it."""
    key = None if mask.key is None else mask.key.decode()
    fields = {"method": mask.method, "value": mask.value, "length": mask.length, "hmac_key": key}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def mask_settings(text: str) -> Any:
    """The settings of a mask as a configuration file has them, of a text such as `truncate:2`, or of JSON.

    Raises:
        ConfigError: the text has another form.
    """
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise ConfigError("it is not a JSON object", hint=_MASK_HINT) from None
    name, colon, argument = text.partition(":")
    method = _method(name.strip())
    if not colon:
        return {"method": method}
    if method not in _ARGUMENTS:
        raise ConfigError(f"the mask {method} takes nothing", hint=_MASK_HINT)
    if method != "truncate":
        return {"method": method, _ARGUMENTS[method]: argument}
    if not (argument.strip().isascii() and argument.strip().isdigit() and len(argument) < 10):
        raise ConfigError("the length is not a whole number from 0 to 999999999", hint=_MASK_HINT)
    return {"method": method, "length": int(argument)}


def _method(name: str) -> Method:
    from cdfd.plan.shape.masks import METHODS

    if name not in METHODS:
        raise ConfigError(f"there is no mask {name!r:.100}", hint=_MASK_HINT)
    return name
