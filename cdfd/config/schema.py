"""The JSON schema of the configuration file, for editors: pydantic's, with the texts that the file has instead of parsed values.

A scalar of the file is text for cdfd, and a reference such as `${NAME}` can stand for any of them. So the schema accepts numbers where cdfd
reads text, and references everywhere. It cannot know conflicts between keys: `cdfd check` finds those.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from textwrap import dedent
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from cdfd.config import values
from cdfd.config.discovery import Discovery
from cdfd.config.fields import Section
from cdfd.config.settings import Settings, SinkSettings
from cdfd.config.table import Table, parse_column
from cdfd.config.validation_errors import file_settings
from cdfd.config.values import Listen
from cdfd.runtime.registry import SINKS, Registry

REFERENCE: Final = r"\$\{"
"""Pattern of texts with a reference to a variable of the environment."""

_DEFINITIONS: Final = "#/$defs/{model}"
_TEXT: Final[JsonSchemaValue] = {"type": ["string", "number", "boolean"]}
_SEVERAL: Final[JsonSchemaValue] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _matching(pattern: str, *types: str) -> JsonSchemaValue:
    """Text of a pattern, or with a reference; and values of other types."""
    return {"type": ["string", *types], "pattern": f"^(?:{pattern})$|{REFERENCE}"}


_PARSED: Final[Mapping[Any, JsonSchemaValue]] = {
    values.seconds: _matching(r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d)"),
    values.size: _matching(r"[0-9]{1,12}(?:\.[0-9]{1,9})? ?(?:[KMGT]i?B|B)?", "number"),
    values.share: _matching(r"[01]|[01]?\.[0-9]{1,9}", "number") | {"minimum": 0, "maximum": 1},
    values.flag: _matching("true|True|TRUE|false|False|FALSE", "boolean"),
    values.pipeline_name: _matching("[a-z0-9][a-z0-9._-]{0,99}", "number"),
    values.topic_name: _matching("[A-Za-z0-9._-]{1,249}", "number"),
    values.topic_prefix: _matching("[A-Za-z0-9._-]{0,200}", "number"),
    values.web_address: _matching(r"https?://[^\s/?#]+[^\s?#]*"),
    values.servers: _SEVERAL,
    values.addresses: _SEVERAL,
    Listen.parse: _matching(r"\S+:[0-9]{1,5}"),
    values.start: {
        "anyOf": [
            _TEXT,
            {"type": "object", "properties": {"after": _TEXT}, "required": ["after"], "additionalProperties": False},
        ]
    },
    parse_column: {
        "anyOf": [
            _TEXT,
            {
                "type": "object",
                "properties": {"name": _TEXT, "as": _TEXT},
                "required": ["name"],
                "additionalProperties": False,
            },
        ]
    },
}
"""The texts of the file that a function parses. All others are any text."""


def json_schema() -> dict[str, Any]:
    """The schema of a configuration file, of draft 7. Sinks and formats of installed packages are in it."""
    kinds = {kind: SINKS.load(kind) for kind in SINKS.names()}
    sections: list[type[Section]] = [Settings, Table, Discovery, SinkSettings, *kinds.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # defaults that are no JSON have none in the schema
        names, schema = models_json_schema(
            [(section, "validation") for section in sections],
            ref_template=_DEFINITIONS,
            schema_generator=_FileSchema,
        )
    definitions = schema["$defs"]
    references = {section: names[section, "validation"] for section in sections}
    name_of = {section: reference["$ref"].rpartition("/")[2] for section, reference in references.items()}
    # The other keys of a sink depend on its kind.
    definitions[name_of[SinkSettings]] = {
        "type": ["object", "null"],
        "properties": {"kind": {**_one_of(list(kinds)), "description": descriptions(SinkSettings)["kind"][0]}},
        "required": ["kind"],
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": references[section]}
            for kind, section in kinds.items()
        ],
    }
    root = definitions.pop(name_of[Settings])
    root["properties"]["tables"]["items"] = {
        "if": {"required": ["discover"]},
        "then": references[Discovery],
        "else": references[Table],
    }
    root["anyOf"] = [{"required": ["sink"]}, {"required": ["sinks"]}]
    title = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Configuration of cdfd"}
    document: dict[str, Any] = _with_bounds(title | root | {"$defs": definitions})
    return document


def _with_bounds(document: Any) -> Any:
    """A schema with the bounds of whole numbers by their names in JSON schemas. Those of sizes and durations have none: they are texts."""
    if isinstance(document, list):
        return [_with_bounds(item) for item in document]
    if not isinstance(document, dict):
        return document
    whole = "integer" in document.get("type", ())
    renamed = {
        _BOUNDS.get(key, key): _with_bounds(value) for key, value in document.items() if whole or key not in _BOUNDS
    }
    renamed.pop("allow_inf_nan", None)
    return renamed


_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}


def _one_of(choices: list[Any]) -> JsonSchemaValue:
    numbers = [{"type": "integer"}] if any(str(choice).isdigit() for choice in choices) else []  # `0640` without quotes
    return {"anyOf": [{"enum": choices}, {"type": "string", "pattern": REFERENCE}, *numbers]}


class _FileSchema(GenerateJsonSchema):
    """The schema of the texts of a file, not of the values that are parsed from them."""

    def function_plain_schema(self, schema: Any) -> JsonSchemaValue:
        return _PARSED.get(schema["function"]["function"], _TEXT)

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        return _PARSED.get(schema["function"]["function"], inner)

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        function = schema["function"]["function"]
        if isinstance(function, partial) and isinstance(next(iter(function.args), None), Registry):
            choices = _one_of(function.args[0].names())
            # A function before the choice takes other words for some of them.
            is_translated = schema["schema"]["type"] == "function-before"
            return {"anyOf": [*choices["anyOf"], {"type": "string"}]} if is_translated else choices
        return self.generate_inner(schema["schema"])

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        return _one_of(schema["expected"])

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        return _TEXT | ({"minLength": schema["min_length"]} if "min_length" in schema else {})

    def bool_schema(self, schema: Any) -> JsonSchemaValue:
        return _PARSED[values.flag]

    def int_schema(self, schema: Any) -> JsonSchemaValue:
        return _matching("-?[0-9]{1,18}", "integer") | {key: schema[key] for key in _BOUNDS if key in schema}

    def tuple_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "array", "items": self.generate_inner(schema["items_schema"][0])}

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        shown = _default(schema)
        return inner if shown is None else {**inner, "default": shown}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        section: type[Section] = schema["cls"]
        document = super().model_schema(schema)
        document.pop("title", None)
        document["type"] = ["object", "null"]  # nothing after the key means the defaults
        document["description"] = (inspect.getdoc(section) or "").partition("\n\n")[0].replace("\n", " ")
        properties = document.get("properties", {})
        texts = descriptions(section)
        required = document.pop("required", [])
        for name, value in list(properties.items()):
            described = _with_null(value) if name not in required else dict(value)
            if name in texts:
                text, default = texts[name]
                described["description"] = f"{text} Default: {default}." if default else text
            properties[name] = described
            if name in _mounted():
                text = f"The path of a file with `{name}`."
                properties[f"{name}_file"] = {"type": ["string", "null"], "description": text}
        always = [name for name in required if name not in _mounted()]
        either = [
            {"anyOf": [{"required": [name]}, {"required": [f"{name}_file"]}]} for name in required if name in _mounted()
        ]
        document |= ({"required": always} if always else {}) | ({"allOf": either} if either else {})
        return document if section.words is None else {"anyOf": [_one_of(section.words.names()), document]}


_mounted: Final = cache(file_settings)


def _with_null(value: JsonSchemaValue) -> JsonSchemaValue:
    """A value, or nothing after the key, which means the default."""
    default = {"default": value["default"]} if "default" in value else {}
    value = {key: each for key, each in value.items() if key != "default"}
    if "$ref" in value:  # a section, which takes null itself; draft 7 ignores a description beside the reference
        return {"allOf": [value], **default}
    if {"type": "null"} in value.get("anyOf", ()):
        return value | default
    if isinstance(value.get("type"), list):
        return value | {"type": [*value["type"], "null"]} | default
    return {"anyOf": [*value.get("anyOf", [value]), {"type": "null"}], **default}


_UNITS: Final[Mapping[Any, Sequence[tuple[int, str]]]] = {
    values.seconds: ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")),
    values.size: ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "")),
}


def with_unit(value: float, parser: Callable[[object], Any]) -> str:
    """A duration (`values.seconds`) or a size (`values.size`) as a file has it: `500ms`, `2.5s`, `64MiB`."""
    smallest = round(value * 1000) if parser is values.seconds else int(value)
    size, unit = next((size, unit) for size, unit in _UNITS[parser] if smallest % size == 0)
    if unit == "ms" and smallest > 1000:
        return f"{smallest / 1000}s"
    return f"{smallest // size}{unit}"


def _default(schema: Any) -> Any:
    """The default of a setting as a file has it; None if there is none to show."""
    value = schema.get("default")
    inner = schema["schema"]
    parsers = set()
    while "schema" in inner:
        parsers.add(inner.get("function", {}).get("function") if isinstance(inner.get("function"), dict) else None)
        inner = inner["schema"]
    for parser in _UNITS:
        if parser in parsers and value is not None:
            return with_unit(value, parser)
    return value if isinstance(value, bool | int | float) or (isinstance(value, str) and value) else None


@cache
def descriptions(section: type[Section]) -> dict[str, tuple[str, str]]:
    """Descriptions of fields, and their defaults in words: the docstrings after the fields, of base classes too.

    A paragraph of a docstring that begins with `Default:` describes a default that the model cannot state.
    """
    texts = {name: (field.description, "") for name, field in section.model_fields.items() if field.description}
    for base in reversed(section.__mro__[: section.__mro__.index(Section)]):
        if base.__qualname__ == "OptionalTableOptions":
            continue  # it is made of fields that have descriptions
        [body] = ast.parse(dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                    description, _, default = " ".join(text.split()).partition(" Default: ")
                    texts[name] = description, default.removesuffix(".")
    return texts
