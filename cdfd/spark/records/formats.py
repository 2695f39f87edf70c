"""The formats of topics that can be read as rows of Spark."""

from collections.abc import Mapping
from typing import Final, get_args

from cdfd.encode.formats import CHOICES, MODES, EncodingName, EnvelopeName, FormatChoice
from cdfd.errors import ConfigError, UnsupportedError

_READ: Final[Mapping[EncodingName, tuple[EnvelopeName, ...]]] = {
    "json": get_args(EnvelopeName),
    "json_schema": get_args(EnvelopeName),
    "avro": get_args(EnvelopeName),
    "arrow": ("flat",),
}
_FUNCTIONS: Final[Mapping[EncodingName, str]] = {
    "protobuf": "`from_protobuf`",
    "connect_json": "`from_json`",
}
_FORMS: Final = ("decimal", "time", "binary")


def format_choice(format: str | Mapping[str, str]) -> FormatChoice:
    """The envelope and the encoding of a format, which is given as in a configuration.

    Raises:
        ConfigError: there is no such format.
        UnsupportedError: it is not read.
    """
    if isinstance(format, str):
        if format not in CHOICES:
            raise ConfigError(
                f"there is no format {format!r:.100}",
                hint=f"There are {', '.join(CHOICES)}, or a mapping with `envelope` and `encoding`",
            )
        choice = CHOICES[format]
    else:
        words = {"envelope": get_args(EnvelopeName), "encoding": get_args(EncodingName)}
        for name, value in format.items():
            if name not in (*words, *_FORMS):
                raise ConfigError(f"`format` has no key {name!r:.100}", hint=f"It has {', '.join((*words, *_FORMS))}")
            if name in words and value not in words[name]:
                raise ConfigError(f"`{name}` of `format` is {value!r:.100}", hint=f"There are {', '.join(words[name])}")
        choice = FormatChoice(**dict(format))  # type: ignore[arg-type] # checked
    if choice.envelope not in _READ.get(choice.encoding, ()):
        function = _FUNCTIONS.get(choice.encoding, "hand")
        raise UnsupportedError(
            f"`read_changes` does not read the encoding {choice.encoding} in the envelope {choice.envelope}",
            hint=f"Deliver the table in avro or json_schema, or read records of Spark's Kafka source by {function}",
        )
    for form in _FORMS:
        own = getattr(MODES[choice.encoding], form) if choice.encoding in MODES else None
        if getattr(choice, form) not in (None, own):
            raise UnsupportedError(
                f"`read_changes` does not read `{form}: {getattr(choice, form)}` in the encoding {choice.encoding}",
                hint=f"Deliver the table with `{form}: {own}`, which is the default",
            )
    return choice
