"""Configuration: a YAML file and the environment -> frozen settings. The only reader of the environment."""

from cdfd.config.parser import folder_of, load, parse, storage
from cdfd.config.problems import ConfigProblems
from cdfd.config.settings import (
    S3,
    CatchUp,
    DeltaSink,
    Engine,
    FilesSink,
    Http,
    KafkaSink,
    Poll,
    Progress,
    SchemaRegistry,
    Security,
    Settings,
    SparkEngine,
    Storage,
    Table,
    Topics,
)
from cdfd.config.values import Ledger, Listen, Secret, Start

__all__ = [
    "S3",
    "CatchUp",
    "ConfigProblems",
    "DeltaSink",
    "Engine",
    "FilesSink",
    "Http",
    "KafkaSink",
    "Ledger",
    "Listen",
    "Poll",
    "Progress",
    "SchemaRegistry",
    "Secret",
    "Security",
    "Settings",
    "SparkEngine",
    "Start",
    "Storage",
    "Table",
    "Topics",
    "folder_of",
    "load",
    "parse",
    "storage",
]
