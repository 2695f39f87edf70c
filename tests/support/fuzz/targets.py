"""All targets."""

import json
from pathlib import Path

from tests.support.fuzz import (
    commands,
    decoders,
    edges,
    large,
    positions,
    reading,
    server,
    services,
    texts,
    trevni_files,
    workings,
)
from tests.support.fuzz.cases import Case, Target

_MODULES = (reading, commands, decoders, texts, edges, services, positions, workings, large, trevni_files)
TARGETS: tuple[Target, ...] = tuple(target for module in _MODULES for target in module.TARGETS)


def by_name(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)


def prepared() -> None:
    """Have the tables that cases begin with, made elsewhere: this process may fork afterwards."""
    if not reading._bases:

        def made() -> tuple[object, object]:
            reading.prepare()
            for name in reading.HINTED:
                reading.expected(name)
            return reading._bases, reading._expected

        bases, expected = server.elsewhere(made)
        reading._bases.update(bases)
        reading._expected.update(expected)


def load(path: Path) -> Case:
    return Case.from_json(json.loads(path.read_text()))
