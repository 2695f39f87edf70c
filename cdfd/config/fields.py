"""The types of settings, and the section, from which every part of the configuration is made."""

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from cdfd.config import values
from cdfd.config.values import Secret, UserName
from cdfd.runtime.registry import Registry
from cdfd.storage.home import HOME_HINT, NOT_EXPANDED, begins_at_home

AS_TEXT = PlainSerializer(str, return_type=str)

FOLDER = "folder"
"""Key of the validation context: the folder that relative paths are seen from; without it they stay as they are."""


def in_folder(place: str, info: ValidationInfo) -> str:
    """A relative path, joined to the folder of the context. URIs, absolute paths, and all paths without a folder are unchanged."""
    if begins_at_home(place):
        raise ValueError(f"{NOT_EXPANDED}: {HOME_HINT}")
    folder = (info.context or {}).get(FOLDER)
    if folder is None or os.path.isabs(place) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place):
        return place
    return os.path.normpath(os.path.join(folder, place))


Text: TypeAlias = Annotated[str, Field(min_length=1), BeforeValidator(values.read_now)]
LocalPath: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(in_folder)]
Folder: TypeAlias = Annotated[str, PlainValidator(values.folder), AfterValidator(in_folder)]
Name: TypeAlias = Annotated[str, PlainValidator(values.topic_name)]
Uri: TypeAlias = Annotated[str, PlainValidator(values.uri), AfterValidator(in_folder)]
TableUri: TypeAlias = Annotated[str, PlainValidator(values.table_uri), AfterValidator(in_folder)]
WebAddress: TypeAlias = Annotated[str, PlainValidator(values.web_address)]
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(values.seconds), Field(ge=0.01, le=86400.0 * 366, allow_inf_nan=False)
]
Size: TypeAlias = Annotated[int, BeforeValidator(values.size), Field(ge=1)]
Count: TypeAlias = Annotated[int, BeforeValidator(values.whole), Field(ge=1)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(values.flag)]
SecretText: TypeAlias = Annotated[Secret, PlainValidator(Secret.parse), AS_TEXT]
UserText: TypeAlias = Annotated[UserName, PlainValidator(UserName.parse), AS_TEXT]


class Section(BaseModel):
    """A mapping of the file. For an entry without a value (`http:` and nothing under it) its default holds.

    The docstring of a field is its description in `docs/reference-configuration.md`. A paragraph there that begins with
    `Default:` describes a default that the model cannot state, such as one that depends on another key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    nullable: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value of its own, different from the default."""

    words: ClassVar[Registry | None] = None
    """Names that may stand for the section, such as `debezium` in `format: debezium`."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()} - cls.nullable
        return {key: value for key, value in data.items() if value is not None or key not in optional}

    def set_fields(self) -> dict[str, Any]:
        """The fields that are not null, by name, with revealed secrets. Never show them."""
        fields = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in fields.items()}


def registry_name(registry: Registry) -> AfterValidator:
    """Text that is one of a registry's names."""
    return AfterValidator(partial(_check_registered, registry))


def _check_registered(registry: Registry, name: str) -> str:
    if name not in registry:
        raise ValueError(f"expected {either(registry.names())}")
    return name


def either(names: Sequence[str]) -> str:
    """Alternatives in a sentence: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
