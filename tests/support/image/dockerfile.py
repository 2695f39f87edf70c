"""Reads Dockerfiles: instructions in order, in stages. Only what ours uses; anything else is an error."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KNOWN = frozenset(
    {"FROM", "ARG", "ENV", "LABEL", "WORKDIR", "COPY", "ADD", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"}
    | {"ENTRYPOINT", "CMD", "SHELL", "MAINTAINER"}
)

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction.

    Attributes:
        line: number of its first line, from 1.
        name: in upper case, such as `RUN`.
        text: what follows the name, lines joined, variables as written.
        ignored: rules that a comment before it tells linters to ignore.
    """

    line: int
    name: str
    text: str
    ignored: frozenset[str] = frozenset()

    def words(self) -> list[str] | None:
        """The arguments of the JSON form; None for the form that a shell runs."""
        return [str(word) for word in json.loads(self.text)] if self.text.startswith("[") else None


@dataclass(frozen=True, slots=True)
class Stage:
    """A build stage, which begins with `FROM`.

    Attributes:
        base: the image it begins with, variables as written.
        name: what `COPY --from` calls it; empty for none.
        instructions: those after `FROM`.
    """

    base: str
    name: str
    instructions: tuple[Instruction, ...]


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile.

    Raises:
        ValueError: an instruction that is not in `KNOWN`.
    """
    lines = iter(enumerate(text.splitlines(), 1))
    ignored: frozenset[str] = frozenset()
    for number, line in lines:
        if line.startswith("#"):
            match = re.search(r"hadolint ignore=([\w,]+)", line)
            ignored = frozenset(match[1].split(",")) if match else ignored
            continue
        if not line.strip():
            continue
        joined = line
        while joined.endswith("\\"):
            joined = joined[:-1] + next(lines)[1].strip()
        name, _, arguments = joined.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"line {number}: unknown instruction {name}")
        yield Instruction(number, name, arguments.strip(), ignored)
        ignored = frozenset()


def stages(text: str) -> tuple[dict[str, str], list[Stage]]:
    """Arguments before the first stage with their defaults, and the stages."""
    arguments: dict[str, str] = {}
    collected: list[tuple[str, str, list[Instruction]]] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            base, _, name = instruction.text.partition(" AS ")
            collected.append((base, name, []))
        elif collected:
            collected[-1][2].append(instruction)
        else:
            assert instruction.name == "ARG", instruction
            arguments |= assignments(instruction.text)
    return arguments, [Stage(base, name, tuple(those)) for base, name, those in collected]


def assignments(text: str) -> dict[str, str]:
    """`NAME=value NAME="a value" NAME` as a mapping; a name alone has the empty text."""
    pairs = re.findall(r'([\w.]+)(?:=(?:"([^"]*)"|(\S*)))?(?:\s+|$)', text)
    return {name: quoted or plain for name, quoted, plain in pairs}


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """A text with the values of its variables. Unknown ones are empty, as in Docker."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)
