"""YAML text to a tree with line numbers.

Every scalar is text here, quoted or not; only a plain `null` (`~`, nothing) is None. The type of a setting determines the meaning of its
text: a password `0123` stays unchanged, a version `1.10` does not become a number, and `no` is not false. The tree is built from the
parser's events instead of PyYAML's constructors. So tags construct nothing, and duplicate keys are found, which PyYAML accepts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import yaml

from cdfd.config.problems import ConfigProblems, Problem, quoted
from cdfd.escaping import is_unicode

Content: TypeAlias = "str | tuple[Node, ...] | dict[str, Node] | None"

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "map", "seq")) | {"!"}
_MERGE = "<<"
# In `{password: ${PASSWORD}}`, YAML would take the braces of the reference for its own. While YAML is parsed, unused private characters
# replace them.
_REFERENCE = re.compile(r"""\$\{[^{}\n"']*\}""")
_BREAKING = "{}[],"
_MAX_DEPTH = 32
# Limits the expansion of nested aliases.
_MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document.

    Attributes:
        content: None, text, the items of a list, or the entries of a mapping.
        line: line, from 1; of the key, for an entry of a mapping.
        weight: number of nodes in it, itself included, aliases written out.
        height: levels of lists and mappings in it, itself included, aliases written out.
    """

    content: Content
    line: int | None
    weight: int = 1
    height: int = 0


def read(text: str) -> tuple[Node, list[Problem]]:
    """Parse one YAML document.

    Returns it with its minor problems (duplicate keys, unknown tags). Raises `ConfigProblems`
    with line and column if it is not YAML, is empty, or has more than one document.
    """
    spare = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in text)
    marks = "".join(itertools.islice(spare, len(_BREAKING)))
    shield, unshield = str.maketrans(_BREAKING, marks), str.maketrans(marks, _BREAKING)
    shielded = _REFERENCE.sub(lambda match: match[0].translate(shield), text)
    composer = _Composer(_events(shielded), unshield)
    return composer.document(), composer.problems


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # Without the error's excerpt of the file, because that line may have a password.
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        reason = reason.replace("character '\\t'", "a tab")
        reason = re.sub(
            r"'([^']*)'", lambda match: match[0] if match[1][:1] == "<" or len(match[1]) < 2 else "a name", reason
        )
        mark = error.problem_mark or error.context_mark
        problem = Problem((), f"not YAML: {reason}")
        if mark is not None:
            problem = Problem((), f"not YAML: {reason}, column {mark.column + 1}", mark.line + 1)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = Problem((), f"not YAML: character {error.position} is not allowed", line)
    except (ValueError, OverflowError):
        # PyYAML passes escapes such as "\UFFFFFFFF" to chr() without a check.
        problem = Problem((), "not YAML: an escape sequence names a character that does not exist")
    else:
        return
    raise ConfigProblems([problem])


def _line(event: yaml.Event) -> int | None:
    return None if event.start_mark is None else event.start_mark.line + 1


class _Composer:
    """Builds nodes from events, and collects problems."""

    def __init__(self, events: Iterator[yaml.Event], unshield: dict[int, int]) -> None:
        self.problems: list[Problem] = []
        self._events = events
        self._unshield = unshield
        self._anchors: dict[str, Node] = {}
        self._path: list[str | int] = []
        self._weight = 0

    def document(self) -> Node:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise ConfigProblems([Problem((), "the configuration is empty")])
        root = self._node(next(self._events))
        next(self._events)  # the end of the document
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise ConfigProblems(
                [Problem((), "expected one YAML document, found another one after it", _line(following))]
            )
        return root

    def _node(self, event: yaml.Event) -> Node:
        if isinstance(event, yaml.AliasEvent):
            node = self._anchors.get(event.anchor or "")
            if node is None:
                raise self._stop("an alias refers to nothing before it", event)
            self._check_size(node.weight, node.height, event)
            return replace(node, line=_line(event))
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        self._check_size(1, 0, event)
        if event.tag is not None and event.tag not in _CORE_TAGS:
            self.problems.append(Problem(tuple(self._path), "a YAML tag that is not supported", _line(event)))
        if isinstance(event, yaml.ScalarEvent):
            # The first of `implicit` says that the scalar is plain and has no tag.
            is_null = event.implicit[0] and event.value in _NULLS
            if not is_null and not is_unicode(event.value):
                raise self._stop("the text is not valid Unicode", event)
            node = Node(None if is_null else str(event.value).translate(self._unshield), _line(event))
        elif isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                self._path.append(len(items))
                items.append(self._node(item))
                self._path.pop()
            node = _parent(tuple(items), event)
        else:
            node = self._mapping(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _mapping(self, start: yaml.Event) -> Node:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._stop("expected a name as the key of a mapping, found an alias, a list or a mapping", event)
            key = str(event.value).translate(self._unshield)
            if not is_unicode(key):
                raise self._stop(f"the key {quoted(key)} is not valid Unicode", event)
            self._path.append(key)
            node = self._node(next(self._events))
            if key == _MERGE:
                merged |= self._merge(node, event)
            elif key in entries:
                self.problems.append(
                    Problem(tuple(self._path), f"duplicate key, first on line {entries[key].line}", _line(event))
                )
            else:
                entries[key] = replace(node, line=_line(event))
            self._path.pop()
        return _parent(merged | entries, start)

    def _merge(self, node: Node, event: yaml.Event) -> dict[str, Node]:
        """Entries of `<<: *a` or `<<: [*a, *b]`. The first entry of a key wins."""
        merged: dict[str, Node] = {}
        for source in node.content if isinstance(node.content, tuple) else (node,):
            if not isinstance(source.content, dict):
                raise self._stop("expected a mapping, or a list of mappings, to merge", event)
            merged = source.content | merged
        return merged

    def _check_size(self, nodes: int, levels: int, event: yaml.Event) -> None:
        if len(self._path) + levels > _MAX_DEPTH:
            raise self._stop(f"nested deeper than {_MAX_DEPTH} levels", event)
        self._weight += nodes
        if self._weight > _MAX_NODES:
            raise self._stop(f"more than {_MAX_NODES} values", event)

    def _stop(self, what: str, event: yaml.Event) -> ConfigProblems:
        return ConfigProblems([*self.problems, Problem(tuple(self._path), what, _line(event))])


def _parent(content: tuple[Node, ...] | dict[str, Node], start: yaml.Event) -> Node:
    children = tuple(content.values()) if isinstance(content, dict) else content
    weight = 1 + sum(child.weight for child in children)
    return Node(content, _line(start), weight, 1 + max((child.height for child in children), default=0))
