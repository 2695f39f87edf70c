"""Configuration: a YAML file and the environment to frozen settings. The only reader of the environment.

Names are imported when they are used: the Python API needs the shapes of rows from here, and neither pydantic nor YAML.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfd.config.parser import folder_of, load, parse, storage
    from cdfd.config.problems import ConfigProblems
    from cdfd.config.sections import CatchUp, Engine, Http, Poll, Progress, SparkEngine
    from cdfd.config.settings import Settings, SinkSettings, Table
    from cdfd.config.stores import S3, Storage
    from cdfd.config.values import Ledger, Listen, Secret, Start

__all__ = [
    "S3",
    "CatchUp",
    "ConfigProblems",
    "Engine",
    "Http",
    "Ledger",
    "Listen",
    "Poll",
    "Progress",
    "Secret",
    "Settings",
    "SinkSettings",
    "SparkEngine",
    "Start",
    "Storage",
    "Table",
    "folder_of",
    "load",
    "parse",
    "storage",
]

_MODULES = {
    "parser": ("folder_of", "load", "parse", "storage"),
    "problems": ("ConfigProblems",),
    "sections": ("CatchUp", "Engine", "Http", "Poll", "Progress", "SparkEngine"),
    "stores": ("S3", "Storage"),
    "values": ("Ledger", "Listen", "Secret", "Start"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'settings')}"), name)
