"""Configuration: a YAML file and the environment to frozen settings. The only reader of the environment."""

from cdfd.config.parser import folder_of, load, parse, storage
from cdfd.config.problems import ConfigProblems
from cdfd.config.settings import (
    S3,
    CatchUp,
    Engine,
    Http,
    Poll,
    Progress,
    Settings,
    SinkSettings,
    SparkEngine,
    Storage,
    Table,
)
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
