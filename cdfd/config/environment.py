"""Resolves references of a document: environment variables (`${NAME}`) and mounted secrets (`*_file`).

References are resolved after YAML is parsed, and only in texts. So the value of a variable never becomes a key or a list.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cdfd.config.document import Node
from cdfd.config.problems import Path, Problem, quoted
from cdfd.runtime.mounted import MountedText

_REFERENCE = re.compile(
    r"\$\$\{"  # an escape: a literal ${
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|\$\{"  # neither: malformed
)

_AWS = {
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
_AWS_CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a value.

    Attributes:
        line: line of the file; None if it is not in the file.
        shown: the text in the file: `${NAME}` instead of the variable's value.
        key: the key in the file, if it is not the setting's name (`password_file`).
    """

    line: int | None = None
    shown: str | None = None
    key: str | None = None


@dataclass(slots=True)
class Resolved:
    """A document with resolved references.

    Attributes:
        data: text, mounted files, None, lists and dicts.
        sources: the source of each value.
        problems: references that cannot be resolved.
    """

    data: Any = None
    sources: dict[Path, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """Line of a value; for a missing value, the line of its section."""
        while path and path not in self.sources:
            path = path[:-1]
        source = self.sources.get(path)
        return None if source is None else source.line

    def report(self, path: Path, what: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(path, what, self.line(path)))


def resolve(
    root: Node, environ: Mapping[str, str], mounted: Callable[[], Collection[str]], folder: str | None = None
) -> Resolved:
    """Resolve every reference of a document.

    Args:
        environ: the environment.
        mounted: gives the names of the settings that may be given as a file, with the suffix `_file`. It is called if a key has it.
        folder: base of relative paths of such files; None: the working directory.
    """
    resolver = _Resolver(environ, mounted, folder)
    resolver.resolved.data = resolver.value(root, ())
    return resolver.resolved


class _Resolver:
    def __init__(self, environ: Mapping[str, str], mounted: Callable[[], Collection[str]], folder: str | None) -> None:
        self.resolved = Resolved()
        self._environ = environ
        self._mounted = cache(mounted)
        self._folder = folder or ""

    def value(self, node: Node, path: Path) -> Any:
        content = node.content
        self.resolved.sources[path] = Source(node.line, content if isinstance(content, str) else None)
        if isinstance(content, str):
            before = len(self.resolved.problems)
            expanded = _REFERENCE.sub(lambda match: self._resolve_reference(match, path), content)
            if len(self.resolved.problems) > before:
                # A unique placeholder, so that a missing variable causes no further problems.
                return f"unset{before}"
            whole = _REFERENCE.fullmatch(content)
            # `${NAME:-}` alone means that the setting is not given.
            return None if not expanded and whole is not None and whole["default"] == "" else expanded
        if isinstance(content, tuple):
            return [self.value(item, (*path, index)) for index, item in enumerate(content)]
        if isinstance(content, dict):
            values = {key: self.value(entry, (*path, key)) for key, entry in content.items()}
            # The keys of `tables[0].mask`, and of `tables[0].overrides[1].headers`, are names of columns.
            has_columns = path[:1] == ("tables",) and len(path) % 2 == 1 and path[-1] in ("mask", "headers")
            for key in () if has_columns else tuple(values):
                name = key.removesuffix("_file")
                if name == key or name not in self._mounted() or (file := values.pop(key)) is None:
                    continue
                if values.get(name) is not None:
                    self.resolved.report((*path, name), f"given twice, here and as {key}")
                    continue
                self.resolved.sources[*path, name] = Source(content[key].line, key=key)
                values[name] = self._mounted_secret(file, (*path, key))
            return values
        return None

    def _mounted_secret(self, file: Any, path: Path) -> MountedText | str | None:
        if any(problem.path == path for problem in self.resolved.problems):
            return str(file)  # the placeholder of a variable that is not set
        if not isinstance(file, str):
            self.resolved.report(path, "expected the path of a file")
            return None
        try:
            return MountedText(os.path.join(self._folder, file))
        except ValueError as error:
            self.resolved.report(path, str(error))
            return None

    def _resolve_reference(self, reference: re.Match[str], path: Path) -> str:
        if reference[0] == "$${":
            return "${"
        name, default = reference["name"], reference["default"]
        if name is None:
            self.resolved.report(path, "expected ${NAME} or ${NAME:-default}; write $${ for a literal ${")
            return ""
        value = self._environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            self.resolved.report(path, f"the environment variable {quoted(name)[1:-1]} is not set")
            return ""
        return value


def add_aws(resolved: Resolved, environ: Mapping[str, str]) -> None:
    """Fill missing settings of `storage.s3` from the usual `AWS_*` variables.

    Key, secret and token belong together: the variables are used only if the document has none of the three, and no profile.
    """
    if not isinstance(resolved.data, dict):
        return
    storage = _section(resolved.data, "storage")
    s3 = _section(storage, "s3") if storage is not None else None
    if s3 is None:
        return
    variables = {key: name for key, names in _AWS.items() for name in names[::-1] if environ.get(name)}
    has_credentials = any(s3.get(key) is not None for key in (*_AWS_CREDENTIALS, "profile"))
    paired = "access_key_id" in variables and "secret_access_key" in variables
    for key, name in variables.items():
        if key in _AWS_CREDENTIALS and (has_credentials or not paired):
            continue
        if s3.get(key) is None:
            s3[key] = environ[name]
            resolved.sources["storage", "s3", key] = Source(shown=f"${{{name}}}")


def _section(parent: dict[str, Any], key: str) -> dict[str, Any] | None:
    if parent.get(key) is None:
        parent[key] = {}
    section = parent[key]
    return section if isinstance(section, dict) else None
