"""Pydantic's validation errors to problems with a clear text.

A problem never shows a value from pydantic. It shows the text of the file, unless its section has a secret.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cdfd.config.environment import Resolved
from cdfd.config.problems import Path, Problem, conflicts_of, quoted
from cdfd.config.settings import Section, Settings, SinkSettings
from cdfd.config.values import Secret
from cdfd.runtime.registry import SINKS

_EXPECTED = {
    "string_type": "expected text",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "mapping_type": "expected a mapping",
    "model_type": "expected a mapping",
    "string_too_short": "expected text that is not empty",
    "too_short": "at least one is required",
}


def file_settings() -> frozenset[str]:
    """Settings that may be given as a mounted file: every secret, and user names, which are often mounted with them."""
    roots = [Settings, *map(SINKS.load, SINKS.names())]
    secrets = {
        name
        for root in roots
        for section in _all_sections(root)
        for name in section.model_fields
        if get_origin(section.model_fields[name].annotation) is not Mapping  # a file cannot have several secrets
        and _has_secret(section.model_fields[name].annotation)
    }
    return frozenset(secrets | {"username"})


def validation_problems(error: ValidationError, resolved: Resolved) -> list[Problem]:
    """All validation errors as problems, except for values that could not be resolved."""
    paths = {problem.path for problem in resolved.problems}
    problems: list[Problem] = []
    for detail in error.errors(include_url=False, include_input=False):
        place = _Place(detail["loc"], resolved)
        if detail["type"] == "extra_forbidden":
            problems.append(place.unknown_key())
            continue
        for below, what in _messages(detail):
            problems.append(place.problem(below, what))
    return [problem for problem in problems if problem.path not in paths]


def _messages(detail: ErrorDetails) -> Iterator[tuple[Path, str]]:
    """The relative path and the text of each problem."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            yield (), "required"
        case "literal_error":
            yield (), "expected " + str(context["expected"]).replace("'", "")
        case "greater_than_equal":
            yield (), f"expected at least {context['ge']}"
        case "less_than_equal":
            yield (), f"expected at most {context['le']}"
        case "value_error":
            yield from conflicts_of(detail)
        case kind:
            yield (), _EXPECTED.get(kind, detail["msg"])


class _Place:
    """A place in the document and in the models at once."""

    def __init__(self, loc: tuple[int | str, ...], resolved: Resolved) -> None:
        self._resolved = resolved
        self._path: Path = loc
        sink: Any = resolved.data
        for step in loc[:2] if loc[:1] == ("sinks",) else ("sink",):
            sink = sink.get(step) if isinstance(sink, dict) else None
        kind: Any = sink.get("kind") if isinstance(sink, dict) else None
        here: tuple[type[Section], ...] = (Settings,)
        parents = here
        in_mapping = in_secret = False
        self._shown: int | None = None
        for end, step in enumerate(loc):
            if in_secret and not re.fullmatch(r"[\w.-]+", str(step)):
                self._shown = end  # Without a colon, a secret is a key: `{authorization=Bearer x}`.
                break
            if isinstance(step, int) or in_mapping:
                # A key of a mapping of sections is a user's word.
                in_mapping = False
                continue
            parents = here
            annotations = [section.model_fields[step].annotation for section in here if step in section.model_fields]
            in_mapping = any(map(_maps_to_sections, annotations))
            in_secret = any(map(_has_secret, annotations))
            here = tuple(below for annotation in annotations for below in _sections_in(annotation))
            if here == (SinkSettings,):
                here = (SINKS.load(kind),) if kind in SINKS else ()
        self._sections = parents + here

    def problem(self, below: Path, what: str) -> Problem:
        """A problem here or below, with the text of the file if it may be shown."""
        path = (*self._path, *below)
        shown = self._show(path) if what.startswith("expected") else ""
        return Problem(self._as_written(path)[: self._shown], what + shown, self._resolved.line(path))

    def unknown_key(self) -> Problem:
        """A problem about an unknown key, with the nearest known key."""
        names = sorted({name for section in self._sections for name in section.model_fields} - {self._path[-1]})
        files = [f"{name}_file" for name in names if name in file_settings()]
        nearest = difflib.get_close_matches(str(self._path[-1]), names + files, n=1)
        hint = f", did you mean {quoted(nearest[0])}?" if nearest else f"; known here: {', '.join(names)}"
        return Problem(self._as_written(self._path), f"unknown key{hint}", self._resolved.line(self._path))

    def _show(self, path: Path) -> str:
        value = self._resolved.data
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return ""
        source = self._resolved.sources.get(path)
        if value is None:
            return ", found nothing"
        if isinstance(value, list | dict):
            return ", found a list" if isinstance(value, list) else ", found a mapping"
        if source is None or source.shown is None:
            return ""
        fields = (field for section in self._sections for field in section.model_fields.values())
        is_sensitive = any(_has_secret(field.annotation) for field in fields)
        hidden = is_sensitive or re.search(r":.*@|[?&](?i:sig|X-Amz-Signature)=", source.shown)
        if hidden and not re.fullmatch(r"\$\{\w+\}", source.shown):
            return ""
        return f", found {quoted(source.shown)}"

    def _as_written(self, path: Path) -> Path:
        sources = self._resolved.sources
        keys = (sources[path[: end + 1]].key if path[: end + 1] in sources else None for end in range(len(path)))
        return tuple(step if key is None else key for step, key in zip(path, keys, strict=True))


def _sections_in(annotation: Any) -> tuple[type[Section], ...]:
    """Sections in a field's annotation: `tuple[Table, ...]` -> `Table`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(section for argument in get_args(annotation) for section in _sections_in(argument))


def _maps_to_sections(annotation: Any) -> bool:
    if get_origin(annotation) is Mapping:
        return bool(_sections_in(annotation))
    return any(map(_maps_to_sections, get_args(annotation)))


def _all_sections(root: type[Section]) -> Iterator[type[Section]]:
    yield root
    for field in root.model_fields.values():
        for section in _sections_in(field.annotation):
            yield from _all_sections(section)


def _has_secret(annotation: Any) -> bool:
    """Whether a field is a secret, or has several: `Mapping[str, SecretText]`."""
    return annotation is Secret or any(map(_has_secret, get_args(annotation)))
